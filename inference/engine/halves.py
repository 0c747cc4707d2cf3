"""A model cut in two before its head, so that of a prompt only the last position becomes logits."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
from mlx.nn.layers.base import Module
from mlx_lm.models.cache import make_prompt_cache

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Halves:
    """``trunk``: tokens, ``(rows, tokens)``, and caches to hidden states, ``(rows, tokens, width)``. ``head``: these to
    logits, ``(rows, tokens, vocabulary)``. One after the other they are the model."""

    trunk: Callable[[mx.array, list[Any]], mx.array]
    head: Callable[[mx.array], mx.array]


def cut(model: Module) -> Halves | None:
    """The model in two; None if it does not come apart where most of mlx-lm's do.

    Nobody promises that a model's parts are all that it does (some scale or cap their logits afterwards), so both ways
    are run on two tokens, and have to give the same bits. Where the head costs a fifth of a pass, as in a small model
    with a large vocabulary, logits of every prompt token would cost more than a pass of its own for the last one.
    """
    trunk = getattr(model, "model", None)
    head = getattr(model, "lm_head", None) or getattr(getattr(trunk, "embed_tokens", None), "as_linear", None)
    if not callable(trunk) or not callable(head):
        return None
    halves = Halves(trunk, head)
    tokens = mx.array([[0, 1]])
    try:
        apart = halves.head(halves.trunk(tokens, make_prompt_cache(model)))
        same = bool(mx.array_equal(apart, model(tokens, cache=make_prompt_cache(model))))
    except Exception as error:  # noqa: BLE001 (logged: whatever it is, the model is run whole)
        _log.info("the model cannot be cut before its head, and is run whole: %s", error)
        return None
    return halves if same else None
