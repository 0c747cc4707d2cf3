from __future__ import annotations

import random
import re

from hypothesis import given
from hypothesis import strategies as st

from accounts import key_text

_DIGITS = st.sampled_from(key_text.ALPHABET)


@st.composite
def keys(draw: st.DrawFn) -> key_text.KeyText:
    rng = draw(st.randoms(use_true_random=False))
    return key_text.draw(rng.choice)


@given(keys())
def test_a_drawn_key_is_parsed_into_its_parts(key: key_text.KeyText) -> None:
    assert key_text.parse(str(key)) == key


@given(keys(), st.data())
def test_a_key_with_any_one_character_changed_is_none(key: key_text.KeyText, data: st.DataObject) -> None:
    raw = str(key)
    index = data.draw(st.integers(0, len(raw) - 1))
    other = data.draw(_DIGITS.filter(lambda digit: digit != raw[index]))
    assert key_text.parse(raw[:index] + other + raw[index + 1 :]) is None


@given(keys(), st.data())
def test_a_key_cut_short_or_with_more_around_it_is_none(key: key_text.KeyText, data: st.DataObject) -> None:
    raw = str(key)
    cut = data.draw(st.integers(0, len(raw) - 1))
    assert key_text.parse(raw[:cut]) is None
    assert key_text.parse(raw + data.draw(st.text(min_size=1, max_size=3))) is None
    assert key_text.parse(data.draw(st.text(min_size=1, max_size=3)) + raw) is None


@given(st.text())
def test_no_other_text_is_taken_for_a_key(text: str) -> None:
    assert key_text.parse(text) is None


@given(keys(), st.text(), st.text())
def test_a_key_is_found_inside_other_text(key: key_text.KeyText, before: str, after: str) -> None:
    assert key_text.CONTAINS_KEY.search(before + str(key) + after)
    assert key.secret not in key_text.CONTAINS_KEY.sub("***", f"{before}{key}\n{after}")


@given(keys())
def test_the_repr_of_a_key_keeps_its_secret(key: key_text.KeyText) -> None:
    assert key.secret not in repr(key)


def test_a_key_reads_as_documented() -> None:
    raw = str(key_text.draw(random.Random(7).choice))
    assert re.fullmatch(r"sb_[0-9A-Za-z]{12}_[0-9A-Za-z]{49}", raw)


def test_keys_are_drawn_from_the_system_s_randomness() -> None:
    assert len({str(key_text.draw()) for _ in range(100)}) == 100
