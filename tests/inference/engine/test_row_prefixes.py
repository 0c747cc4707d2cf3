"""Prefixes of models with other caches than plain attention's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mlx.core as mx
import pytest
from mlx.nn.layers.base import Module
from mlx.utils import tree_map
from mlx_lm.models import lfm2, llama
from mlx_lm.models.cache import CacheList, KVCache, QuantizedKVCache, RotatingKVCache

from inference.engine.batch import PrefillBatch
from inference.engine.kv_growth import measure_growth
from inference.engine.row_prefixes import Prefix, RowPrefixes
from inference.engine.sampling import RowSampler
from tests.inference.engine.driving import GREEDY

PLENTY = 1 << 30
VOCABULARY = 64


class ListedLlama(llama.Model):  # type: ignore[misc]
    """Its layers' caches come in lists, as those of models with two caches a layer."""

    def make_cache(self) -> list[Any]:
        return [CacheList(KVCache()) for _ in self.layers]

    def __call__(self, inputs: mx.array, cache: Sequence[Any]) -> mx.array:
        logits: mx.array = super().__call__(inputs, cache=[each[0] for each in cache])
        return logits


class QuantizedLlama(llama.Model):  # type: ignore[misc]
    def make_cache(self) -> list[Any]:
        return [QuantizedKVCache() for _ in self.layers]


class WindowedLlama(llama.Model):  # type: ignore[misc]
    def make_cache(self) -> list[Any]:
        return [RotatingKVCache(max_size=8) for _ in self.layers]


def llama_arguments() -> llama.ModelArgs:
    return llama.ModelArgs(
        model_type="llama",
        hidden_size=64,
        num_hidden_layers=2,
        intermediate_size=64,
        num_attention_heads=2,
        rms_norm_eps=1e-5,
        vocab_size=VOCABULARY,
    )


def recurrent() -> Module:
    """One layer of convolutions, whose state cannot be cut, and one of attention."""
    return random_weights(
        lfm2.Model(
            lfm2.ModelArgs(
                model_type="lfm2",
                vocab_size=VOCABULARY,
                hidden_size=32,
                num_hidden_layers=2,
                num_attention_heads=2,
                num_key_value_heads=1,
                max_position_embeddings=512,
                norm_eps=1e-5,
                conv_bias=False,
                conv_L_cache=3,
                block_dim=32,
                block_multiple_of=32,
                block_ffn_dim_multiplier=1.0,
                block_auto_adjust_ff_dim=False,
                block_ff_dim=64,
                layer_types=["conv", "full_attention"],
            )
        )
    )


def random_weights(model: Module) -> Module:
    mx.random.seed(5)
    model.update(tree_map(lambda weight: mx.random.normal(weight.shape) * 0.3, model.parameters()))
    mx.eval(model.parameters())
    return model


def batch_of(model: Module, prefix: Prefix | None = None) -> PrefillBatch:
    return PrefillBatch.of_one(model, "g", RowSampler(GREEDY, VOCABULARY), (), prefix)


def tokens_of(model: Module, prompt: list[int], prefix: Prefix | None = None, count: int = 12) -> list[int]:
    batch = batch_of(model, prefix)
    rest = prompt[len(prefix.tokens) if prefix else 0 :]
    if len(rest) > 1:
        batch.prompt([rest[:-1]])
    decoding = batch.start(rest[-1:])
    return [token for _ in range(count) for _, token in decoding.step()]


def test_a_recurrent_state_is_found_at_its_end_and_nowhere_else() -> None:
    model = recurrent()
    prefixes = RowPrefixes(model, PLENTY)
    prompt = [*range(3, 40), 7, 7]
    batch = batch_of(model)
    batch.prompt([prompt[:20]])
    prefixes.keep("tenant", batch, "g")
    batch.prompt([prompt[20:30]])
    prefixes.keep("tenant", batch, "g")
    assert prefixes.find("tenant", prompt[:20]) is None
    assert prefixes.find("tenant", [*prompt[:19], 50, 50]) is None
    for known, divergence in ((20, [*prompt[:25], 50, 51]), (30, prompt)):
        prefix = prefixes.find("tenant", divergence)
        assert prefix is not None
        assert len(prefix.tokens) == known
        assert tokens_of(model, divergence, prefix) == tokens_of(model, divergence)


def test_what_goes_on_from_a_prefix_leaves_it_as_it_was() -> None:
    model = recurrent()
    prefixes = RowPrefixes(model, PLENTY)
    prompt = list(range(3, 30))
    batch = batch_of(model)
    batch.prompt([prompt])
    prefixes.keep("tenant", batch, "g")
    expected = {ending: tokens_of(model, [*prompt, ending, ending + 1]) for ending in (40, 50)}
    assert expected[40] != expected[50]
    # Two at once from one prefix, and each again.
    for ending in (40, 50, 40, 50):
        prefix = prefixes.find("tenant", [*prompt, ending, ending + 1])
        other = prefixes.find("tenant", [*prompt, 60])
        assert prefix is not None
        assert other is not None
        tokens_of(model, [*prompt, 60], other, count=3)
        assert tokens_of(model, [*prompt, ending, ending + 1], prefix) == expected[ending]


def test_caches_in_lists_are_kept_one_by_one() -> None:
    model = random_weights(ListedLlama(llama_arguments()))
    prefixes = RowPrefixes(model, PLENTY)
    prompt = list(range(3, 30))
    batch = batch_of(model)
    batch.prompt([prompt])
    prefixes.keep("tenant", batch, "g")
    prefix = prefixes.find("tenant", [*prompt[:10], 60, 61])
    assert prefix is not None
    assert len(prefix.tokens) == 10
    assert tokens_of(model, [*prompt[:10], 60, 61], prefix) == tokens_of(model, [*prompt[:10], 60, 61])


@pytest.mark.parametrize("kind", [llama.Model, WindowedLlama, ListedLlama])
def test_nothing_is_kept_of_caches_that_have_not_run_what_their_batch_says(
    kind: type[Module], caplog: pytest.LogCaptureFixture
) -> None:
    model = random_weights(kind(llama_arguments()))
    prefixes = RowPrefixes(model, PLENTY)
    prompt = list(range(3, 30))
    batch = batch_of(model)
    batch.prompt([prompt[:20]])
    batch.tokens[0] += prompt[20:]
    prefixes.keep("tenant", batch, "g")
    assert "a cache has run 20 tokens of 27" in caplog.text
    assert prefixes.cache.bytes == 0
    assert prefixes.find("tenant", [*prompt, 60]) is None


def test_of_caches_of_an_unknown_kind_nothing_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    model = random_weights(QuantizedLlama(llama_arguments()))
    prefixes = RowPrefixes(model, PLENTY)
    assert "QuantizedKVCache" in caplog.text
    prefixes.set_budget(PLENTY)
    assert prefixes.cache.byte_budget == 0
    assert prefixes.find("tenant", [1, 2, 3]) is None


def test_growth_is_that_of_each_kind_of_cache() -> None:
    attention = measure_growth(random_weights(ListedLlama(llama_arguments())), 512)
    assert (attention.bytes_per_token, attention.step, attention.fixed_bytes) == (2 * 2 * 64 * 4, 256, 0)
    mixed = measure_growth(recurrent(), 512)
    assert (mixed.bytes_per_token, mixed.step, mixed.fixed_bytes) == (2 * 16 * 4, 256, 2 * 32 * 4)
