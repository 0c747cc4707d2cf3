from __future__ import annotations

import sys
from pathlib import Path

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.engine import cpu_attention
from inference.engine.cpu_attention import attention
from inference.engine.model_loading import load_prepared

_MLX = cpu_attention._mlx_attention
SCALE = 0.125


def _inputs(
    batch: int, groups: int, heads_of_a_group: int, tokens: int, length: int, seed: int = 0
) -> tuple[mx.array, mx.array, mx.array]:
    keys = mx.random.split(mx.random.key(seed), 3)
    return (
        mx.random.normal((batch, groups * heads_of_a_group, tokens, 8), key=keys[0]) * 4,
        mx.random.normal((batch, groups, length, 8), key=keys[1]) * 4,
        mx.random.normal((batch, groups, length, 8), key=keys[2]),
    )


@given(
    batch=st.integers(1, 3),
    groups=st.integers(1, 3),
    heads_of_a_group=st.integers(1, 3),
    tokens=st.integers(1, 9),
    before=st.integers(0, 40),
    mask=st.sampled_from(["none", "causal", "booleans", "padding", "by head", "addends"]),
    seed=st.integers(0, 1000),
)
def test_it_is_mlx_attention_up_to_rounding(
    batch: int, groups: int, heads_of_a_group: int, tokens: int, before: int, mask: str, seed: int
) -> None:
    length = before + tokens
    queries, keys, values = _inputs(batch, groups, heads_of_a_group, tokens, length, seed)
    causal = mx.arange(before, length)[:, None] >= mx.arange(length)
    padding = mx.arange(length)[None, :] >= mx.minimum(mx.arange(batch), before)[:, None]
    heads = mx.arange(groups * heads_of_a_group)[:, None, None]
    chosen: mx.array | str | None = {
        "none": None,
        "causal": "causal",
        "booleans": causal,
        "padding": causal & padding[:, None, None],
        "by head": (causal & ((mx.arange(length) + heads) % 3 != 1) | (mx.arange(length) == 0))[None],
        "addends": mx.where(causal, mx.sin(mx.arange(length)), -1e9)[None, None],
    }[mask]
    ours = attention(queries, keys, values, scale=SCALE, mask=chosen)
    assert mx.allclose(ours, _MLX(queries, keys, values, scale=SCALE, mask=chosen), rtol=1e-4, atol=1e-5)


@given(padding=st.integers(1, 70), neighbours=st.integers(0, 3), seed=st.integers(0, 1000))
def test_a_row_is_the_same_to_the_bit_whatever_is_beside_it(padding: int, neighbours: int, seed: int) -> None:
    queries, keys, values = _inputs(1, 2, 2, 3, 30, seed)
    alone = attention(queries, keys, values, scale=SCALE, mask="causal")
    others = _inputs(neighbours + 1, 2, 2, 3, 30 + padding, seed + 1)
    wide = [
        mx.concatenate(
            [mx.concatenate([other[:1, :, : other.shape[2] - row.shape[2]], row], axis=2), other[1:]]
        )
        for other, row in zip(others, (queries, keys, values), strict=True)
    ]
    length = 30 + padding
    seen = (mx.arange(length - 3, length)[:, None] >= mx.arange(length)) & (mx.arange(length) >= padding)
    mask = mx.concatenate([seen[None, None], mx.ones((neighbours, 1, 3, length), dtype=mx.bool_)])
    beside = attention(*wide, scale=SCALE, mask=mask)[:1]
    assert mx.array_equal(alone, beside)


@pytest.mark.parametrize("what", ["half precision", "sinks", "three axes"])
def test_what_it_does_not_know_is_left_to_mlx(what: str) -> None:
    queries, keys, values = _inputs(1, 2, 2, 3, 5)
    sinks = mx.zeros(4) if what == "sinks" else None
    mask = mx.ones((4, 3, 5), dtype=mx.bool_) if what == "three axes" else None
    if what == "half precision":
        queries, keys, values = (array.astype(mx.float16) for array in (queries, keys, values))
    ours = attention(queries, keys, values, scale=SCALE, mask=mask, sinks=sinks)
    theirs = _MLX(queries, keys, values, scale=SCALE, mask=mask, sinks=sinks)
    assert ours.dtype == queries.dtype
    assert mx.array_equal(ours, theirs)


def test_a_row_that_may_see_nothing_is_finite() -> None:
    nothing = mx.zeros((3, 5), dtype=mx.bool_)
    assert mx.all(mx.isfinite(attention(*_inputs(1, 2, 2, 3, 5), scale=SCALE, mask=nothing)))


def test_models_attend_by_it_on_a_linux_cpu_only(any_tiny_model: Path) -> None:
    load_prepared(any_tiny_model)
    on_a_cpu = sys.platform == "linux" and mx.default_device() == mx.cpu
    assert (mx.fast.scaled_dot_product_attention is attention) == on_a_cpu
