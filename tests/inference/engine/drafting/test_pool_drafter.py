"""Interleaved sequences draft what each drafts alone, and a tenant's texts serve that tenant only."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.engine.drafting.drafter import Drafter
from inference.engine.drafting.pool_drafter import PoolDrafter
from inference.engine.drafting.pool_store import PoolOwner, PoolStore
from inference.engine.drafting.prompt_lookup import PromptLookup
from inference.engine.drafting.suffix_pool import SuffixPool, pack
from tests.inference.engine.drafting.contexts import TOKENS, context, drafted

OWNER = PoolOwner("tiny", "0" * 64, "vocabulary")
NEUTRAL = [[0, 1, 2, 3, 0, 1], [2, 2, 1, 0]]


def pools(directory: Path, neutral: list[list[int]] | None = None) -> PoolStore:
    return PoolStore(directory, OWNER, SuffixPool(map(pack, neutral)) if neutral else None)


def pool_drafter(directory: Path, neutral: list[list[int]] | None = None) -> PoolDrafter:
    return PoolDrafter(pools(directory, neutral))


Making = Callable[[], Drafter]


@pytest.mark.slow
@pytest.mark.parametrize("make", [PromptLookup, lambda: pool_drafter(Path("nowhere"), NEUTRAL)])
@given(st.data())
def test_interleaved_sequences_draft_what_each_drafts_alone(make: Making, data: st.DataObject) -> None:
    shared = make()
    texts = {key: data.draw(TOKENS) for key in "abcdef"}
    for _ in range(data.draw(st.integers(1, 12))):
        key = data.draw(st.sampled_from(sorted(texts)))
        now = context(texts[key], key, namespace="tenant")
        k = data.draw(st.integers(0, 6))
        guesses = drafted(shared, now, k)
        assert guesses == drafted(make(), now, k)
        assert len(guesses) <= k
        accepted = data.draw(st.integers(0, len(guesses)))
        committed = [*guesses[:accepted], data.draw(st.integers(0, 3))]
        shared.observe(committed, len(guesses), accepted)
        texts[key] = texts[key] + committed
        if data.draw(st.booleans()):
            shared.release()


def test_the_longest_context_decides_and_the_sequence_itself_comes_first(tmp_path: Path) -> None:
    drafter = pool_drafter(tmp_path, [[1, 2, 3, 8], [5, 6, 8]])
    # Two tokens in the sequence, three in the pool.
    assert drafted(drafter, context([0, 2, 3, 9, 1, 2, 3]), k=1) == [8]
    # Two in both.
    assert drafted(drafter, context([5, 6, 9, 4, 5, 6]), k=1) == [9]
    # In the pool alone.
    assert drafted(drafter, context([4, 5, 6]), k=1) == [8]


def test_a_draft_ends_where_its_guesses_become_unlikely(tmp_path: Path) -> None:
    before = [10, 11, 12, 1]
    answers = [[*before, 2, 3, 4], [*before, 2, 3, 5], [*before, 2, 6], [*before, 7]]
    drafter = pool_drafter(tmp_path, answers)
    # 3/4, then 2/3, then 1/2, each trusted by nine tenths: the third would be 0.18.
    assert drafted(drafter, context(before), k=4) == [2, 3]


def test_what_follows_a_short_context_is_trusted_less(tmp_path: Path) -> None:
    drafter = pool_drafter(tmp_path, [[1, 2, 3, 4, 5, 6], [8, 4, 9]])
    # Seen once each, and nothing else after it: one token is not enough to go on by, four are.
    assert drafted(drafter, context([1]), k=4) == [2]
    assert drafted(drafter, context([1, 2, 3, 4]), k=4) == [5, 6]
    assert drafted(drafter, context([4]), k=4) == []


def finish(drafter: Drafter, answer: list[int], namespace: str | None, *, learns: bool) -> None:
    drafter.finish(context([9, 9, *answer], "over", namespace=namespace, learns=learns, prompt_length=2))


def test_what_was_produced_for_a_tenant_is_drafted_for_it_and_for_no_other(tmp_path: Path) -> None:
    drafter = pool_drafter(tmp_path)
    finish(drafter, [1, 2, 3, 4, 5, 6, 7], "mine", learns=True)
    now = [1, 2, 3, 4]
    assert drafted(drafter, context(now, namespace="mine", learns=True)) == [5, 6, 7]
    assert drafted(drafter, context(now, namespace="another", learns=True)) == []
    assert drafted(drafter, context(now, namespace=None, learns=True)) == []
    # Not even of the prompt it answered.
    assert drafted(drafter, context([9], namespace="mine", learns=True)) == []


def test_a_tenant_that_does_not_want_a_pool_neither_teaches_nor_reads_one(tmp_path: Path) -> None:
    drafter = pool_drafter(tmp_path, [[5, 6, 7]])
    finish(drafter, [1, 2, 3, 4], "mine", learns=True)
    finish(drafter, [4, 0, 1], "mine", learns=False)
    assert drafted(drafter, context([1], namespace="mine", learns=False)) == []
    assert drafted(drafter, context([5], namespace="mine", learns=False)) == [6]
    assert drafted(drafter, context([4], namespace="mine", learns=True)) == []
    assert not list(tmp_path.iterdir())


@given(st.data())
def test_another_tenants_answers_change_no_draft(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("pools")
    alone, shared = pool_drafter(directory / "alone", NEUTRAL), pool_drafter(directory / "shared", NEUTRAL)
    for _ in range(data.draw(st.integers(1, 6))):
        answer = data.draw(TOKENS)
        if data.draw(st.booleans()):
            finish(alone, answer, "mine", learns=True)
            finish(shared, answer, "mine", learns=True)
        else:
            finish(shared, answer, "another", learns=True)
    now = context(data.draw(TOKENS), namespace="mine", learns=True)
    assert drafted(shared, now) == drafted(alone, now)


def test_nothing_is_drafted_for_nobody(tmp_path: Path) -> None:
    drafter = pool_drafter(tmp_path, NEUTRAL)
    drafter.bind(context([0]))
    assert drafter.draft(1)
    drafter.release()
    assert drafter.draft(1) == []


def test_memory_counts_the_pools_and_the_sequences(tmp_path: Path) -> None:
    drafter = pool_drafter(tmp_path, NEUTRAL)
    empty = drafter.memory_bytes
    assert empty > 0
    drafter.bind(context(range(100), namespace="mine", learns=True))
    assert drafter.memory_bytes > empty + 4000
