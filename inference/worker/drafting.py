"""What makes the worker's drafter, by its settings; and the pools, which outlive each drafter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from inference.engine.drafting.neutral_pool import find_neutral
from inference.engine.drafting.pool_drafter import PoolDrafter
from inference.engine.drafting.pool_store import PoolOwner, PoolStore
from inference.engine.drafting.prompt_lookup import PromptLookup
from inference.models import DrafterKind, LanguageModel
from inference.scheduler_settings import SpeculationSettings
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
        """What makes the drafter that these settings name, on the engine's thread; None if nothing is to be drafted.

        Making a draft model raises ``DrafterFault`` if it cannot be loaded or does not fit the model.
        """
        if not settings.drafts:
            return None
        match settings.drafter:
            case DrafterKind.PROMPT_LOOKUP:
                return PromptLookup
            case DrafterKind.SUFFIX_POOL:
                return lambda: PoolDrafter(self.pools)
            case DrafterKind.DRAFT_MODEL:
                return lambda: self._draft_model(settings.draft_model_dir)
            case _:
                return None

    def _draft_model(self, directory: str | None) -> Drafter:
        # Only now: this imports MLX.
        from inference.engine.drafting.draft_model import DraftModel
        from inference.engine.drafting.drafter import DrafterFault

        if directory is None:
            raise DrafterFault("No draft model is named: choose one in the model's scheduler settings.")
        return DraftModel(Path(directory), self._tokenizer)


def drafts_otherwise(settings: SpeculationSettings, earlier: SpeculationSettings) -> bool:
    """Whether another drafter is needed than before, or none any more."""
    return _drafter(settings) != _drafter(earlier)


def _drafter(settings: SpeculationSettings) -> tuple[str, str | None, bool]:
    return settings.drafter_key, settings.draft_model_dir, settings.drafts
