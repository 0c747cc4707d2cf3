"""Attention on a Linux CPU, where MLX's own spends its time in the exponentials of the softmax.

MLX's Linux wheel computes ``exp`` one element at a time, in some 20 ns; ``power`` calls the C library's, in 6 ns. With
a prompt of 2,000 tokens the softmax is four fifths of attention and attention two thirds of a chunk, so attention
with powers of two halves what a late chunk takes (docs/adr/0061). The result is the same up to rounding, and a row's
bits do not depend on what else is in its batch, as with MLX's own.

Metal and Accelerate have vector units for it: there nothing is changed.
"""

from __future__ import annotations

import math
import sys
from typing import Final

import mlx.core as mx

_mlx_attention: Final = mx.fast.scaled_dot_product_attention
_LOWEST: Final = mx.finfo(mx.float32).min


def use_cpu_attention() -> None:
    """Let all models of this process attend by ``attention``, if this is a Linux machine and MLX runs on its CPU."""
    if sys.platform == "linux" and mx.default_device() == mx.cpu:
        mx.fast.scaled_dot_product_attention = attention


def attention(
    q: mx.array,
    k: mx.array,
    v: mx.array,
    *,
    scale: float,
    mask: str | mx.array | None = None,
    sinks: mx.array | None = None,
    force_fused: bool = False,
    stream: mx.Stream | mx.ThreadLocalStream | mx.Device | mx.DeviceType | None = None,
) -> mx.array:
    """``mx.fast.scaled_dot_product_attention`` in float32, by powers of two; anything else is MLX's own to do.

    The queries ``q`` are ``(batch, heads, tokens, size)``, the keys ``k`` and values ``v`` ``(batch, groups, length,
    size)``. The mask is ``"causal"``, or booleans or addends of two or four axes that broadcast to ``(batch, heads,
    tokens, length)``.
    """
    strange_mask = isinstance(mask, mx.array) and mask.ndim not in (2, 4)
    if q.dtype != mx.float32 or strange_mask or sinks is not None or force_fused or stream is not None:
        return _mlx_attention(
            q, k, v, scale=scale, mask=mask, sinks=sinks, force_fused=force_fused, stream=stream
        )
    batch, heads, tokens, size = q.shape
    groups, length = k.shape[1:3]
    # 2 to the power of x / ln 2 is e to the power of x: the factor goes where few elements are multiplied.
    grouped = (q * (scale / math.log(2))).reshape(batch, groups, heads // groups, tokens, size)
    scores = grouped @ k[:, :, None].swapaxes(-1, -2)
    if mask is not None:
        scores = scores + _addends(mask, tokens, length, groups)
    weights = mx.power(2.0, scores - mx.max(scores, axis=-1, keepdims=True))
    attended = (weights @ v[:, :, None]) / mx.sum(weights, axis=-1, keepdims=True)
    return attended.reshape(batch, heads, tokens, v.shape[-1])


def _addends(mask: mx.array | str, tokens: int, length: int, groups: int) -> mx.array:
    """What the mask adds to scores of ``(batch, groups, heads of a group, tokens, length)``."""
    if isinstance(mask, str):
        mask = mx.arange(length - tokens, length)[:, None] >= mx.arange(length)
    elif mask.ndim == 4:
        by_group = (1, 1) if mask.shape[1] == 1 else (groups, mask.shape[1] // groups)
        mask = mask.reshape(mask.shape[0], *by_group, *mask.shape[2:])
    return mx.where(mask, 0.0, _LOWEST) if mask.dtype == mx.bool_ else mask / math.log(2)
