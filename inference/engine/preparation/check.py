"""The last step before a model counts as prepared: it is loaded and runs. Imports MLX."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
from mlx_lm.models.cache import make_prompt_cache
from mlx_lm.utils import load_model

from inference.engine.preparation.problems import PreparationError, Problem

#: Characters of mlx-lm's own words in a refusal.
_SHOWN = 200


@dataclass(frozen=True)
class Checked:
    """What a run of one token showed: number of logits, and the type the layers compute in."""

    vocab_size: int
    dtype: str


def check_model(directory: Path, name: str) -> Checked:
    """Load every weight and run one token.

    Raises ``PreparationError`` if a weight is missing, is too many, or does not fit, or if a logit is no number.
    """
    with mlx_refusals(name):
        model, _ = load_model(directory)
        logits = model(mx.array([[0]]), cache=make_prompt_cache(model))
        finite = mx.isfinite(logits).all().item()
    if not finite:
        raise PreparationError(
            Problem.CHECK_FAILED,
            f"{name} computes infinite values, so its weights are damaged. Download it again.",
        )
    return Checked(logits.shape[-1], str(logits.dtype).removeprefix("mlx.core."))


@contextmanager
def mlx_refusals(name: str) -> Iterator[None]:
    """Turn what mlx-lm raises about a model it cannot build or run into one line."""
    try:
        yield
    except (ValueError, KeyError, TypeError, AttributeError, RuntimeError, NotImplementedError) as refusal:
        words = " ".join(str(refusal).split()) or type(refusal).__name__
        shown = words if len(words) <= _SHOWN else words[:_SHOWN] + "…"
        raise PreparationError(
            Problem.CHECK_FAILED,
            f"{name} cannot be run by mlx-lm: {shown.rstrip('.')}. Either its files do not fit together, or mlx-lm is "
            "too old for it.",
        ) from refusal
