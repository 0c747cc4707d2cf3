from __future__ import annotations

import re
from pathlib import Path

import pytest

from inference.api.chat_completions import ChatCompletionRequest
from inference.api.completions import CompletionRequest
from inference.api.errors import ErrorCode
from inference.api.sampling_parameters import StreamOptions
from inference.api.urls import urlpatterns
from signalbox.configuration import ROOT

DOCS = Path(ROOT) / "docs"
PAGE = (DOCS / "api.md").read_text()
PAGES = PAGE + (DOCS / "organization-api.md").read_text()


def test_the_page_names_every_error_code() -> None:
    assert [code.value for code in ErrorCode if f"`{code.value}`" not in PAGE] == []


@pytest.mark.parametrize("model", [ChatCompletionRequest, CompletionRequest, StreamOptions])
def test_the_page_names_every_parameter(model: type[ChatCompletionRequest]) -> None:
    assert [name for name in model.model_fields if f"`{name}`" not in PAGE] == []


def test_the_pages_name_every_route() -> None:
    routes = [re.sub(r"<\w+:\w+>", "{id}", str(pattern.pattern)) for pattern in urlpatterns[:-1]]
    assert [route for route in routes if f"/v1/{route}`" not in PAGES] == []
