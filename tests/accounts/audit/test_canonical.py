"""How records become bytes and hashes: in one way only, whatever order they are given in."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta, timezone
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounts.audit.canonical import (
    GENESIS_HASH,
    canonical_json,
    commitment,
    content_hash,
    link_hash,
    unhex,
    utc_text,
)

_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner),
    max_leaves=20,
)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ({"b": 1, "a": [True, False, None, -7]}, b'{"a":[true,false,null,-7],"b":1}'),
        ({"name": 'é "quoted"\n'}, '{"name":"é \\"quoted\\"\\n"}'.encode()),
        ({}, b"{}"),
        ({"a": {"z": 0, "B": 0, "b": 0}}, b'{"a":{"B":0,"b":0,"z":0}}'),
        (2**70, b"1180591620717411303424"),
    ],
)
def test_a_value_is_written_as_it_always_was(value: Any, written: bytes) -> None:
    assert canonical_json(value) == written


@given(_JSON, st.randoms(use_true_random=False))
def test_equal_values_are_written_equally(value: Any, rng: Any) -> None:
    def shuffled(item: Any) -> Any:
        if isinstance(item, dict):
            pairs = [(key, shuffled(inner)) for key, inner in item.items()]
            rng.shuffle(pairs)
            return dict(pairs)
        return [shuffled(inner) for inner in item] if isinstance(item, list) else item

    assert canonical_json(shuffled(value)) == canonical_json(value)


@given(_JSON)
def test_what_is_written_reads_as_it_was(value: Any) -> None:
    assert json.loads(canonical_json(value)) == value


def test_a_link_covers_the_hash_before_it_and_the_content() -> None:
    content = content_hash({"a": 1})
    assert content == hashlib.sha256(b'{"a":1}').hexdigest()
    linked = hashlib.sha256(bytes(32) + bytes.fromhex(content)).hexdigest()
    assert link_hash(GENESIS_HASH, content) == linked
    assert link_hash(linked, content) != linked


def test_a_commitment_is_of_its_salt_of_whom_it_is_about_and_of_its_value() -> None:
    salt, ada = "00112233445566778899aabbccddeeff", UUID(int=0xADA)
    expected = hashlib.sha256(bytes.fromhex(salt) + ada.hex.encode() + b"\nAda Lovelace").hexdigest()
    assert commitment(salt, ada, "Ada Lovelace") == expected
    assert commitment("ff" * 16, ada, "Ada Lovelace") != expected
    assert commitment(salt, ada, "Ada lovelace") != expected
    assert commitment(salt, None, "Ada Lovelace") != expected
    assert commitment(salt, UUID(int=0xADB), "Ada Lovelace") != expected
    assert commitment(salt, None, "") == hashlib.sha256(bytes.fromhex(salt) + b"\n").hexdigest()


def test_a_value_can_be_taken_apart_in_one_way_only() -> None:
    """Else whom it is about could be made a part of what stands beside it, and nobody would find what is theirs."""
    salt, ada = "00112233445566778899aabbccddeeff", UUID(int=0xADA)
    assert commitment(salt, None, f"{ada.hex}\nAda") != commitment(salt, ada, "Ada")
    for wrong in (salt + ada.hex.encode().hex(), salt[:-2], ""):
        with pytest.raises(ValueError, match="32 hexadecimal digits"):
            commitment(wrong, None, "Ada")


@pytest.mark.parametrize("digits", ["AB", "aB", "ab cd", " ab", "a", "zz", "ab\n"])
def test_digits_are_read_in_the_one_way_in_which_they_are_written(digits: str) -> None:
    assert unhex("00ab") == b"\x00\xab"
    with pytest.raises(ValueError, match="hex"):
        unhex(digits)


def test_a_time_is_written_in_utc_to_the_microsecond() -> None:
    seoul = timezone(timedelta(hours=9))
    assert utc_text(datetime(2027, 1, 2, 3, 4, 5, tzinfo=seoul)) == "2027-01-01T18:04:05.000000+00:00"
    assert utc_text(datetime(2027, 1, 1, 18, 4, 5, 678, tzinfo=UTC)) == "2027-01-01T18:04:05.000678+00:00"
