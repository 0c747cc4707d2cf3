"""Case S5: no character is ever cut, whatever the tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.tokenization.detokenizer import Detokenizer
from inference.tokenization.tokenizer import Tokenizer
from tests.inference.tokenization.formats import Format

REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
#: Emoji with modifiers and joiners, CJK, combining marks, right-to-left, other planes.
characters = st.sampled_from(
    [
        "a",
        "é",
        "あ",
        "信",
        "안",
        " ",
        "  ",
        "\n",
        "e\u0301",
        "👍🏽",
        "👩‍👩‍👧",
        "🏴\U000e0067\U000e007f",
        "שלום",
        "𝄞",
    ]
)
rich_text = st.lists(characters | st.characters(exclude_categories=["Cs"]), max_size=12).map("".join)
token_ids = st.lists(st.integers(0, 290), max_size=24)


def stream(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*map(detokenizer.push, ids), detokenizer.flush()]


@pytest.mark.slow
@given(text=rich_text)
def test_streamed_text_equals_the_references_decoding(tokenizer_format: Format, text: str) -> None:
    ids = tokenizer_format.ours.encode(text)
    expected = tokenizer_format.reference.decode(ids)
    assert "".join(stream(tokenizer_format.ours, ids)) == expected
    assert tokenizer_format.ours.decode(ids) == expected


@pytest.mark.slow
@given(text=rich_text.filter(lambda text: REPLACEMENT not in text))
def test_no_part_of_a_character_shows_at_any_cut(tokenizer_format: Format, text: str) -> None:
    ids = tokenizer_format.ours.encode(text)
    whole = tokenizer_format.ours.decode(ids)
    shown = ""
    for piece in stream(tokenizer_format.ours, ids)[:-1]:
        shown += piece
        assert whole.startswith(shown)


@given(ids=token_ids)
def test_any_tokens_stream_as_the_reference_decodes_them(tokenizer_format: Format, ids: list[int]) -> None:
    expected = tokenizer_format.reference.decode(ids)
    streamed = "".join(stream(tokenizer_format.ours, ids))
    if REPLACEMENT not in expected:
        assert streamed == expected
    # The reference gives up a whole run of fallback bytes for one that is wrong; a stream cannot know.
    assert streamed.count(REPLACEMENT) <= expected.count(REPLACEMENT)


@given(ids=token_ids, cut=st.integers(0, 24))
def test_replaying_the_tokens_restores_the_state(tokenizer_format: Format, ids: list[int], cut: int) -> None:
    undisturbed = stream(tokenizer_format.ours, ids)
    resumed = Detokenizer(tokenizer_format.ours)
    for token in ids[:cut]:
        resumed.push(token)
    assert [*map(resumed.push, ids[cut:]), resumed.flush()] == undisturbed[min(cut, len(ids)) :]


def test_an_unfinished_character_shows_at_the_end_as_one_replacement(tokenizer_format: Format) -> None:
    ours = tokenizer_format.ours
    ids = ours.encode("a𝄞")
    if ours.decode(ids) != "a𝄞":
        pytest.skip("This vocabulary has no bytes, so no unfinished characters.")
    detokenizer = Detokenizer(ours)
    assert "".join(map(detokenizer.push, ids[:-1])) == "a"
    assert detokenizer.flush() == REPLACEMENT
