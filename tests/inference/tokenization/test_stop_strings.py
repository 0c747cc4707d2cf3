"""Case S6: nothing of a stop string, or after it, ever shows."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.tokenization.stop_strings import StopMatcher

#: Few letters, so that stop strings overlap each other, themselves and the text.
stop_lists = st.lists(st.text("ab\n", min_size=1, max_size=20), min_size=1, max_size=4)


@st.composite
def stops_and_text(draw: st.DrawFn) -> tuple[list[str], str]:
    """Stop strings, some the end of another, and a text made of pieces of them."""
    stops = draw(stop_lists)
    stops += [draw(st.sampled_from(stops))[draw(st.integers(0, 3)) :] or "b" for _ in range(4 - len(stops))]
    parts = [stop[start:] for stop in stops for start in range(len(stop))]
    parts += [stop[:end] for stop in stops for end in range(1, len(stop))]
    text = "".join(draw(st.lists(st.sampled_from(parts) | st.text("abc\n", max_size=3), max_size=8)))
    return stops, text


cuts = st.lists(st.integers(0, 60), max_size=20)


def pieces(text: str, cuts: list[int]) -> list[str]:
    bounds = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    return [text[start:stop] for start, stop in pairwise(bounds)]


def expected(text: str, stops: list[str]) -> tuple[str, bool]:
    """The rule, spelled out: the first character that completes a stop string ends the text."""
    for end in range(len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            return text[: end - max(map(len, complete))], True
    return text, False


@given(case=stops_and_text(), cuts=cuts)
def test_streamed_text_ends_before_the_first_complete_stop_string_at_any_cut(
    case: tuple[list[str], str], cuts: list[int]
) -> None:
    stops, text = case
    matcher = StopMatcher(stops)
    shown, hit = "", False
    for piece in pieces(text, cuts):
        released, hit = matcher.push(piece)
        shown += released
        if hit:
            break
    if not hit:
        shown += matcher.flush()
    assert (shown, hit) == expected(text, stops)
    assert not any(stop in shown for stop in stops)


@given(case=stops_and_text())
def test_only_the_longest_possible_beginning_of_a_stop_string_is_held_back(
    case: tuple[list[str], str],
) -> None:
    stops, text = case
    matcher = StopMatcher(stops)
    shown = ""
    for index, character in enumerate(text, start=1):
        released, hit = matcher.push(character)
        shown += released
        if hit:
            return
        beginnings = (stop[:length] for stop in stops for length in range(len(stop)))
        held = max(len(beginning) for beginning in beginnings if text[:index].endswith(beginning))
        assert shown == text[: index - held]


def test_nothing_is_released_after_a_hit() -> None:
    matcher = StopMatcher(["END"])
    assert matcher.push("text EN") == ("text ", False)
    assert matcher.push("D of it") == ("", True)
    assert matcher.push("more") == ("", True)
    assert matcher.flush() == ""


def test_without_stop_strings_everything_passes() -> None:
    assert StopMatcher([]).push("anything") == ("anything", False)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])
