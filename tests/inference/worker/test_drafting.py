"""Which drafter a worker makes for its settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inference.models import DrafterKind, LanguageModel
from inference.scheduler_settings import SpeculationSettings
from inference.scheduling.speculation import SpeculationMode
from inference.tokenization import tokenizer
from inference.worker.drafting import Drafting, drafts_otherwise
from tests.inference.worker.conftest import SETTINGS


def settings(kind: DrafterKind, **changes: Any) -> SpeculationSettings:
    return replace(SETTINGS.speculation, drafter=kind, **changes)


@pytest.fixture
def drafting(roomy_model_dir: Path, tmp_path: Path) -> Drafting:
    model = LanguageModel(name="tiny", checksum="0" * 64)
    return Drafting(model, tokenizer.load(roomy_model_dir), tmp_path)


@pytest.mark.parametrize("kind", [kind for kind in DrafterKind if kind])
def test_each_kind_makes_the_drafter_of_its_name(
    kind: DrafterKind, drafting: Drafting, roomy_model_dir: Path
) -> None:
    named = {"draft_model": "tiny", "draft_model_dir": str(roomy_model_dir)}
    make = drafting.factory(settings(kind, **(named if kind is DrafterKind.DRAFT_MODEL else {})))
    assert make is not None
    assert make().name == kind.value
    assert make() is not make()


def test_nothing_is_made_where_nothing_is_drafted(drafting: Drafting) -> None:
    assert drafting.factory(settings(DrafterKind.NONE)) is None
    assert drafting.factory(settings(DrafterKind.PROMPT_LOOKUP, mode=SpeculationMode.OFF)) is None


@pytest.mark.parametrize(
    ("changes", "otherwise"),
    [
        ({"drafter": DrafterKind.SUFFIX_POOL}, True),
        ({"drafter": DrafterKind.NONE}, True),
        ({"mode": SpeculationMode.OFF}, True),
        ({"mode": SpeculationMode.MEASURED}, False),
        ({"draft_tokens": 2, "grant_rounds": 0}, False),
    ],
)
def test_another_drafter_is_made_only_if_another_is_named(changes: dict[str, Any], otherwise: bool) -> None:
    before = settings(DrafterKind.PROMPT_LOOKUP)
    assert drafts_otherwise(replace(before, **changes), before) is otherwise
