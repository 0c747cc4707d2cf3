"""What makes the worker's drafter, by its settings; and the pools, which outlive each drafter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from inference.engine.drafting.factory import DrafterKind as EngineDrafterKind
from inference.engine.drafting.factory import drafter_factory
from inference.engine.drafting.neutral_pool import find_neutral
from inference.engine.drafting.pool_store import PoolOwner, PoolStore
from inference.models import DrafterKind, LanguageModel
from inference.scheduler_settings import SpeculationSettings
from inference.scheduling.speculation import SpeculationMode
from inference.tokenization import vocabulary
from inference.tokenization.tokenizer import Tokenizer

if TYPE_CHECKING:
    from inference.engine.drafting.drafter import Drafter


class Drafting:
    """Makes drafters for one model. ``pools`` are shared by all of them, and by the thread that saves them."""

    def __init__(self, model: LanguageModel, tokenizer: Tokenizer, pools_dir: Path) -> None:
        owner = PoolOwner(model.name, model.checksum, vocabulary.checksum(tokenizer))
        self.pools: Final = PoolStore(pools_dir, owner, find_neutral(pools_dir, owner))
        self._tokenizer = tokenizer

    def factory(self, settings: SpeculationSettings) -> Callable[[], Drafter] | None:
        """What makes the drafter that these settings name; None if nothing is to be drafted."""
        if settings.drafter is DrafterKind.NONE or settings.mode is SpeculationMode.OFF:
            return None
        return drafter_factory(
            EngineDrafterKind(settings.drafter.value),
            pools=self.pools,
            draft_model_dir=Path(settings.draft_model_dir) if settings.draft_model_dir else None,
            tokenizer=self._tokenizer,
        )


def drafts_otherwise(settings: SpeculationSettings, earlier: SpeculationSettings) -> bool:
    """Whether another drafter is needed than before, or none any more."""
    return _drafter(settings) != _drafter(earlier)


def _drafter(settings: SpeculationSettings) -> tuple[str, str | None, bool]:
    return settings.drafter_key, settings.draft_model_dir, settings.mode is SpeculationMode.OFF
