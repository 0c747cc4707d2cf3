from __future__ import annotations

from pathlib import Path

import pytest

from inference.engine.drafting.factory import DrafterKind, drafter_factory
from inference.engine.drafting.pool_store import PoolOwner, PoolStore
from inference.tokenization import tokenizer


def test_each_kind_makes_the_drafter_of_its_name(tiny_model: Path, tmp_path: Path) -> None:
    pools = PoolStore(tmp_path, PoolOwner("tiny", "0" * 64, "vocabulary"))
    for kind in DrafterKind:
        make = drafter_factory(
            kind, pools=pools, draft_model_dir=tiny_model, tokenizer=tokenizer.load(tiny_model)
        )
        assert make().name == kind.value
        assert make() is not make()


@pytest.mark.parametrize("kind", [DrafterKind.SUFFIX_POOL, DrafterKind.DRAFT_MODEL])
def test_what_a_kind_needs_has_to_be_given(kind: DrafterKind) -> None:
    with pytest.raises(ValueError, match=f"'{kind.value}' needs"):
        drafter_factory(kind)
