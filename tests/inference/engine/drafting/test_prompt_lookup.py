from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from inference.engine.drafting.prompt_lookup import PromptLookup
from tests.inference.engine.drafting.contexts import TOKENS, context, drafted


def looked_up(tokens: Sequence[int], k: int) -> list[int]:
    """The same by looking everywhere, the last place first."""
    for order in (4, 3):
        last = list(tokens[-order:])
        for start in range(len(tokens) - order - 1, -1, -1):
            if len(last) == order and list(tokens[start : start + order]) == last:
                copy = list(tokens)
                for place in range(start + order, start + order + k):
                    copy.append(copy[place])
                return copy[len(tokens) :]
    return []


def test_what_followed_the_last_time_is_proposed() -> None:
    tokens = [1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 6, 7, 0, 1, 2, 3, 4]
    assert drafted(PromptLookup(), context(tokens)) == [6, 7, 0, 1]


def test_three_tokens_are_enough_and_two_are_not() -> None:
    assert drafted(PromptLookup(), context([9, 1, 2, 3, 7, 8, 0, 1, 2, 3])) == [7, 8, 0, 1]
    assert drafted(PromptLookup(), context([9, 2, 3, 7, 8, 0, 2, 3])) == []


def test_a_loop_is_drafted_beyond_its_end() -> None:
    assert drafted(PromptLookup(), context([1, 2, 3, 1, 2, 3]), k=7) == [1, 2, 3, 1, 2, 3, 1]


def test_without_a_sequence_there_is_no_guess() -> None:
    lookup = PromptLookup()
    assert lookup.draft(4) == []
    lookup.bind(context([1, 2, 3, 1, 2, 3]))
    lookup.release()
    assert lookup.draft(4) == []


@given(TOKENS, st.integers(0, 40), st.integers(0, 6))
def test_a_sequence_that_grew_is_indexed_as_one_that_was_there_at_once(
    tokens: list[int], cut: int, k: int
) -> None:
    grown = PromptLookup()
    grown.bind(context(tokens[:cut]))
    assert drafted(grown, context(tokens), k) == drafted(PromptLookup(), context(tokens), k)


@given(TOKENS, st.integers(0, 6))
def test_it_finds_what_looking_everywhere_finds(tokens: list[int], k: int) -> None:
    assert drafted(PromptLookup(), context(tokens), k) == looked_up(tokens, k)


@given(TOKENS, TOKENS)
def test_a_key_that_comes_back_with_another_text_is_indexed_anew(before: list[int], after: list[int]) -> None:
    lookup = PromptLookup()
    lookup.bind(context(before))
    assert drafted(lookup, context(after)) == drafted(PromptLookup(), context(after))


@given(TOKENS)
def test_its_memory_is_counted_and_given_back(tokens: list[int]) -> None:
    lookup = PromptLookup()
    lookup.bind(context(tokens))
    assert lookup.memory_bytes >= 40 * len(tokens)
    lookup.release()
    lookup.finish(context(tokens))
    assert lookup.memory_bytes == 0


def test_only_the_last_few_sequences_are_remembered() -> None:
    lookup = PromptLookup()
    for number in range(100):
        lookup.bind(context(range(200), key=str(number)))
    filled = lookup.memory_bytes
    lookup.bind(context(range(200), key="one more"))
    assert lookup.memory_bytes == filled
