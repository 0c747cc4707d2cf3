from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hypothesis import given, settings
from hypothesis import strategies as st

from inference.engine.drafting.guess import Guess
from inference.engine.drafting.suffix_pool import CAPACITY_TOKENS, SuffixPool, pack

#: Below and above 16 bits.
TEXTS = st.lists(
    st.lists(st.sampled_from([0, 1, 2, 70_000]), min_size=2, max_size=12), max_size=12, unique_by=tuple
)
CONTEXTS = st.lists(st.sampled_from([0, 1, 2, 70_000]), min_size=1, max_size=4).map(tuple)
UNBOUNDED = 1 << 40


def counted(texts: Sequence[Sequence[int]], context: tuple[int, ...]) -> Guess | None:
    """The same by reading all texts."""
    followers = Counter(
        text[place]
        for text in texts
        for place in range(len(context), len(text))
        if tuple(text[place - len(context) : place]) == context
    )
    if not followers:
        return None
    token = min(followers, key=lambda token: (-followers[token], token))
    return Guess(token, followers[token] / followers.total())


@given(TEXTS, CONTEXTS)
def test_it_counts_what_reading_all_texts_counts(texts: list[list[int]], context: tuple[int, ...]) -> None:
    learnt = SuffixPool()
    for text in texts:
        assert learnt.learn(text)
    assert learnt.guess(context) == counted(texts, context)
    loaded = SuffixPool(pack(text) for text in texts)
    assert loaded.guess(context) == learnt.guess(context)
    assert loaded.texts == learnt.texts
    assert loaded.tokens == learnt.tokens == sum(map(len, texts))


@settings(max_examples=50)
@given(TEXTS, CONTEXTS, st.integers(8, 40))
def test_beyond_its_capacity_the_oldest_texts_go(
    texts: list[list[int]], context: tuple[int, ...], capacity: int
) -> None:
    pool = SuffixPool(capacity_tokens=capacity)
    for text in texts:
        pool.learn(text)
        assert pool.tokens <= capacity
        assert pool.texts[-1] == pack(text[-capacity:])
    kept = texts[len(texts) - len(pool.texts) :]
    assert pool.texts == tuple(pack(text[-capacity:]) for text in kept)
    assert pool.guess(context) == counted([text[-capacity:] for text in kept], context)


def test_a_text_that_is_known_counts_once_and_stays_longest() -> None:
    pool = SuffixPool()
    assert pool.learn([1, 2, 3])
    assert pool.learn([1, 2, 4])
    assert not pool.learn([1, 2, 3])
    assert pool.texts == (pack([1, 2, 4]), pack([1, 2, 3]))
    assert pool.guess((2,)) == Guess(3, 0.5)


def test_a_single_token_teaches_nothing() -> None:
    pool = SuffixPool()
    assert not pool.learn([1])
    assert not pool.learn([])
    assert pool.tokens == 0


def test_a_full_pool_takes_two_megabytes() -> None:
    pool = SuffixPool(pack(range(start, start + 512)) for start in range(0, CAPACITY_TOKENS * 2, 512))
    assert pool.tokens == CAPACITY_TOKENS
    assert 1.9e6 < pool.memory_bytes < 2.2e6
