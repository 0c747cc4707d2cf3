from __future__ import annotations

import pytest

from tests.inference.tokenization.formats import FORMATS, Format, write_format


@pytest.fixture(scope="session", params=list(FORMATS))
def tokenizer_format(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Format:
    return write_format(tmp_path_factory.mktemp("tokenizer"), request.param)
