from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.prefix_cache import PUBLISHED, Hit, KeyValues, PrefixCache

#: Bytes of one token in these tests, and of the state at an end.
TOKEN_BYTES = 16
END_BYTES = 8
UNBOUNDED = 1 << 40


def content_of(tokens: Sequence[int]) -> mx.array:
    """Keys or values, ``(1, 2, tokens, 1)``: each a number that stands for its token and all before it."""
    numbers = [float(hash(tuple(tokens[: end + 1])) % 1_000_003) for end in range(len(tokens))]
    return mx.array([numbers, [-number for number in numbers]], dtype=mx.float32)[None, :, :, None]


def state_of(tokens: Sequence[int]) -> mx.array:
    return content_of(tokens)[:, :, -1, 0]


def reader(tokens: Sequence[int], *, with_state: bool = False) -> Callable[[int], KeyValues]:
    def read(start: int) -> KeyValues:
        content = mx.contiguous(content_of(tokens)[:, :, start:])
        return KeyValues((content, content + 0), (state_of(tokens),) if with_state else ())

    return read


def store(cache: PrefixCache, namespace: str, tokens: Sequence[int], *, with_state: bool = False) -> bool:
    return cache.store(namespace, tokens, reader(tokens, with_state=with_state))


def length_of(cache: PrefixCache, namespace: str, prompt: Sequence[int]) -> int:
    hit = cache.lookup(namespace, prompt)
    return hit.length if hit else 0


def assert_true(hit: Hit | None, prompt: Sequence[int], *, with_state: bool = False) -> None:
    """What was found is what running the prompt would have given."""
    if hit is None:
        return
    assert 0 < hit.length < len(prompt)
    expected = content_of(prompt[: hit.length])
    for array in hit.key_values.by_token:
        assert mx.array_equal(array, expected)
    if with_state:
        [state] = hit.key_values.at_end
        assert mx.array_equal(state, state_of(prompt[: hit.length]))


def expected_length(
    stored: set[tuple[str, tuple[int, ...]]], namespace: str, prompt: Sequence[int], *, with_state: bool
) -> int:
    """The same question, asked of everything that was stored, one by one."""
    best = 0
    for owner, tokens in stored:
        if owner not in (namespace, PUBLISHED):
            continue
        common = 0
        while common < min(len(tokens), len(prompt) - 1) and tokens[common] == prompt[common]:
            common += 1
        if not with_state or common == len(tokens):
            best = max(best, common)
    return best


namespaces = st.sampled_from(["one", "another", PUBLISHED])
sequences = st.lists(st.integers(0, 2), min_size=1, max_size=9)
operations = st.lists(st.tuples(st.booleans(), namespaces, sequences), max_size=30)


@pytest.mark.slow
@pytest.mark.parametrize("with_state", [False, True])
@settings(max_examples=150)
@given(operations=operations)
def test_the_longest_prefix_that_may_be_read_is_found(
    with_state: bool, operations: list[tuple[bool, str, list[int]]]
) -> None:
    cache = PrefixCache(UNBOUNDED)
    stored: set[tuple[str, tuple[int, ...]]] = set()
    for storing, namespace, tokens in operations:
        if storing:
            assert store(cache, namespace, tokens, with_state=with_state)
            stored.add((namespace, tuple(tokens)))
        else:
            hit = cache.lookup(namespace, tokens)
            expected = expected_length(stored, namespace, tokens, with_state=with_state)
            assert (hit.length if hit else 0) == expected
            assert_true(hit, tokens, with_state=with_state)
    distinct = {(owner, tokens[: end + 1]) for owner, tokens in stored for end in range(len(tokens))}
    assert cache.bytes == len(distinct) * TOKEN_BYTES + len(stored) * END_BYTES * with_state


@pytest.mark.slow
@pytest.mark.parametrize("with_state", [False, True])
@settings(max_examples=150)
@given(
    operations=st.lists(
        st.tuples(st.sampled_from(["store", "lookup", "evict", "budget"]), namespaces, sequences), max_size=40
    ),
    budget=st.integers(0, 30),
)
def test_evictions_keep_the_budget_and_what_is_left_is_true(
    with_state: bool, operations: list[tuple[str, str, list[int]]], budget: int
) -> None:
    cache = PrefixCache(budget * TOKEN_BYTES)
    stored: set[tuple[str, tuple[int, ...]]] = set()
    for operation, namespace, tokens in operations:
        before = cache.bytes
        if operation == "store":
            kept = store(cache, namespace, tokens, with_state=with_state)
            stored.add((namespace, tuple(tokens)))
            if kept and namespace != PUBLISHED:
                assert length_of(cache, namespace, [*tokens, 0]) == len(tokens)
        elif operation == "lookup":
            hit = cache.lookup(namespace, tokens)
            assert_true(hit, tokens, with_state=with_state)
            assert (hit.length if hit else 0) <= expected_length(
                stored, namespace, tokens, with_state=with_state
            )
        elif operation == "evict":
            wanted = sum(tokens) * TOKEN_BYTES
            assert cache.evict(wanted, {namespace}) == before - cache.bytes >= min(wanted, before)
        else:
            cache.set_budget(sum(tokens) * TOKEN_BYTES, {namespace})
        assert 0 <= cache.bytes == cache.cold_bytes <= cache.byte_budget
    cache.evict(cache.bytes)
    assert cache.bytes == 0
    assert not any(cache.lookup(namespace, [*tokens, 0]) for namespace, tokens in stored)


def test_the_least_recently_used_goes_first() -> None:
    cache = PrefixCache(6 * TOKEN_BYTES)
    for tokens in ([1, 1], [2, 2], [3, 3]):
        store(cache, "one", tokens)
    cache.lookup("one", [1, 1, 9])
    store(cache, "one", [4, 4])
    assert [length_of(cache, "one", [token, token, 9]) for token in (1, 2, 3, 4)] == [2, 0, 2, 2]
    assert cache.counters.evictions == 1


def test_what_others_hang_on_goes_after_them() -> None:
    cache = PrefixCache(6 * TOKEN_BYTES)
    store(cache, "one", [1, 1, 2, 2])
    store(cache, "one", [1, 1, 3, 3])
    cache.evict(1)
    assert length_of(cache, "one", [1, 1, 2, 2, 9]) == 2
    assert length_of(cache, "one", [1, 1, 3, 3, 9]) == 4
    cache.evict(1)
    assert length_of(cache, "one", [1, 1, 3, 3, 9]) == 2


def test_the_spared_namespaces_go_last_whatever_room_is_made_for() -> None:
    cache = PrefixCache(UNBOUNDED)
    spare = {"requester", "another requester"}
    for namespace in (*spare, "other"):
        store(cache, namespace, [1, 1])
    store(cache, "other", [2, 2])
    assert cache.evict(1, spare) == 2 * TOKEN_BYTES
    cache.set_budget(4 * TOKEN_BYTES, spare)
    assert [length_of(cache, namespace, [1, 1, 9]) for namespace in (*spare, "other")] == [2, 2, 0]
    assert cache.evict(1, spare) == 2 * TOKEN_BYTES


def test_what_does_not_fit_evicts_nothing() -> None:
    cache = PrefixCache(4 * TOKEN_BYTES)
    store(cache, "one", [1, 1])
    assert not store(cache, "one", [2, 2, 2, 2, 2])
    assert not store(cache, "one", [1, 1, 2, 2, 2])
    assert length_of(cache, "one", [1, 1, 9]) == 2
    assert length_of(cache, "one", [1, 1, 2, 2, 2, 9]) == 2


def test_only_what_is_new_is_read() -> None:
    cache = PrefixCache(UNBOUNDED)
    store(cache, "one", [1, 2, 3])
    starts: list[int] = []

    def read(start: int) -> KeyValues:
        starts.append(start)
        return reader([1, 2, 3, 4])(start)

    cache.store("one", [1, 2, 3, 4], read)
    cache.store("one", [1, 2, 3, 4], read)
    cache.store("one", [1, 2], read)
    assert starts == [3]


def test_what_cannot_be_read_is_not_kept() -> None:
    cache = PrefixCache(UNBOUNDED)
    assert not cache.store("one", [1, 2], lambda start: None)
    assert not store(cache, "one", [])
    assert cache.lookup("one", [1, 2, 3]) is None


def test_a_published_prefix_stays_while_anybody_sends_it() -> None:
    cache = PrefixCache(6 * TOKEN_BYTES)
    store(cache, PUBLISHED, [1, 1])
    store(cache, "one", [1, 1])
    store(cache, "one", [2, 2])
    cache.lookup("one", [1, 1, 9])
    store(cache, "one", [3, 3])
    assert length_of(cache, "another", [1, 1, 9]) == 2


def test_an_evicted_half_frees_its_memory() -> None:
    cache = PrefixCache(UNBOUNDED)
    size = (1, 1, 4096, 64)

    def read(start: int) -> KeyValues:
        return KeyValues((mx.zeros((*size[:2], size[2] - start, size[3])),))

    mx.clear_cache()
    before = mx.get_active_memory()
    cache.store("one", [1] * 4096, read)
    cache.store("one", [1] * 2048 + [2] * 2048, read)
    mx.synchronize()
    cache.evict(1)
    cache.evict(1)
    mx.synchronize()
    assert cache.bytes == 2048 * 64 * 4
    assert mx.get_active_memory() - before < 1.5 * cache.bytes


def test_sequences_that_begin_to_run_are_counted() -> None:
    cache = PrefixCache(UNBOUNDED)
    for found in (0, 7, 0, 5):
        cache.record(found)
    counters = cache.counters
    assert (counters.lookups, counters.hits, counters.hit_tokens) == (4, 2, 12)
