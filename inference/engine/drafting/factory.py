"""From the name of a drafter to what makes one."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from pathlib import Path

from inference.engine.drafting.drafter import Drafter
from inference.engine.drafting.pool_drafter import PoolDrafter
from inference.engine.drafting.pool_store import PoolStore
from inference.engine.drafting.prompt_lookup import PromptLookup
from inference.tokenization.tokenizer import Tokenizer


class DrafterKind(StrEnum):
    """Which drafter; the value is its ``name``."""

    PROMPT_LOOKUP = "prompt_lookup"
    SUFFIX_POOL = "suffix_pool"
    DRAFT_MODEL = "draft_model"


def drafter_factory(
    kind: DrafterKind,
    *,
    pools: PoolStore | None = None,
    draft_model_dir: Path | None = None,
    tokenizer: Tokenizer | None = None,
) -> Callable[[], Drafter]:
    """What makes a drafter of this kind, on the engine's thread, as often as one is needed.

    A suffix pool needs ``pools``, which outlive each drafter. A draft model needs its prepared directory and the
    ``tokenizer`` of the model it guesses for; making it raises ``DrafterFault`` if the two do not fit.

    Raises ``ValueError`` when what the kind needs is not given.
    """
    match kind:
        case DrafterKind.PROMPT_LOOKUP:
            return PromptLookup
        case DrafterKind.SUFFIX_POOL if pools is not None:
            store = pools
            return lambda: PoolDrafter(store)
        case DrafterKind.DRAFT_MODEL if draft_model_dir is not None and tokenizer is not None:
            directory, target = draft_model_dir, tokenizer

            def load() -> Drafter:
                # Only now: this imports MLX.
                from inference.engine.drafting.draft_model import DraftModel

                return DraftModel(directory, target)

            return load
        case _:
            needed = (
                "pools" if kind is DrafterKind.SUFFIX_POOL else "draft_model_dir and the target's tokenizer"
            )
            raise ValueError(f"The drafter {kind.value!r} needs {needed}.")
