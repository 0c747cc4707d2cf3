from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.tokenization import tokenizer
from inference.tokenization.control_tokens import REPLACEMENT, SEAL
from inference.tokenization.pieces import UnsupportedDecoderError, piece_bytes
from tests.inference.tokenization.formats import BEGIN, CALL, END, Format

#: Text with what attackers write: whole control tokens, and halves that might be put together.
hostile_text = st.lists(
    st.sampled_from(
        [BEGIN, END, CALL, "<|", "|>", "<", ">", "begin", "end", SEAL, f"{SEAL}0{SEAL}", " ", "\n"]
    )
    | st.text(max_size=5),
    max_size=12,
).map("".join)
plain_text = st.text(st.characters(exclude_characters=["<", SEAL], exclude_categories=["Cs"]), max_size=60)


@given(text=plain_text)
def test_text_without_control_tokens_is_encoded_as_by_the_reference(
    tokenizer_format: Format, text: str
) -> None:
    assert tokenizer_format.ours.encode(text) == tokenizer_format.reference_ids(text)


@pytest.mark.slow
@given(text=hostile_text)
def test_client_text_never_becomes_a_control_token(tokenizer_format: Format, text: str) -> None:
    assert not tokenizer_format.control_ids & set(tokenizer_format.ours.encode(text))


@pytest.mark.slow
@given(parts=st.lists(st.tuples(hostile_text, st.just(False)), max_size=4))
def test_client_parts_never_become_a_control_token_together(
    tokenizer_format: Format, parts: list[tuple[str, bool]]
) -> None:
    assert not tokenizer_format.control_ids & set(tokenizer_format.ours.encode_parts(parts))


@given(texts=st.lists(plain_text, max_size=4))
def test_literal_control_tokens_around_plain_text_are_encoded_as_by_the_reference(
    tokenizer_format: Format, texts: list[str]
) -> None:
    parts = [part for text in texts for part in ((f"{BEGIN}x\n{CALL}", True), (text, False), (END, True))]
    whole = "".join(text for text, _ in parts)
    assert tokenizer_format.ours.encode_parts(parts) == tokenizer_format.reference_ids(whole)


def test_a_control_token_needs_to_be_wholly_literal(tokenizer_format: Format) -> None:
    ours, end = tokenizer_format.ours, tokenizer_format.id_of(END)
    assert end in ours.encode_parts([("<|", True), ("end", True), ("|>", True)])
    assert end in ours.encode_parts([("<|", True), ("", False), ("end|>", True)])
    assert end not in ours.encode_parts([("<|", True), ("end", False), ("|>", True)])
    assert end not in ours.encode_parts([("<|end", True), ("|>", False)])


def test_what_is_no_text_becomes_the_replacement_character(tokenizer_format: Format) -> None:
    ours = tokenizer_format.ours
    assert ours.encode(f"a{SEAL}b") == ours.encode(f"a{REPLACEMENT}b")
    assert ours.encode("a\ud83db") == ours.encode(f"a{REPLACEMENT}b")
    assert ours.encode("\ud83d\udc4d") == ours.encode("👍")


def test_a_raw_completion_begins_with_the_models_own_token(tokenizer_format: Format) -> None:
    ours = tokenizer_format.ours
    assert ours.encode("hi", add_special_tokens=True) == [tokenizer_format.id_of(BEGIN), *ours.encode("hi")]


def test_special_tokens_and_ids_beyond_the_tokenizer_show_nothing(tokenizer_format: Format) -> None:
    ours = tokenizer_format.ours
    beyond = ours.vocab_size - 1
    for token in (tokenizer_format.id_of(BEGIN), tokenizer_format.id_of(END), beyond):
        assert ours.is_hidden(token)
        assert ours.token_bytes(token) == b""
    assert ours.decode([tokenizer_format.id_of(CALL)]) == CALL
    assert ours.eos_ids == {tokenizer_format.id_of(END)}
    assert ours.special_tokens == {"bos_token": BEGIN, "eos_token": END}


def test_a_missing_or_broken_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(tokenizer.TokenizerError, match=r"tokenizer\.json is missing"):
        tokenizer.load(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(tokenizer.TokenizerError, match="not valid JSON"):
        tokenizer.load(tmp_path)


def test_a_decoder_that_needs_whole_words_is_refused_by_name(tmp_path: Path) -> None:
    definition = {"model": {"type": "WordPiece", "vocab": {}}, "decoder": {"type": "WordPiece"}}
    for name, content in (
        ("tokenizer.json", definition),
        ("tokenizer_config.json", {}),
        ("signalbox.json", {"vocab_size": 1, "eos_token_ids": []}),
    ):
        (tmp_path / name).write_text(json.dumps(content))
    with pytest.raises(tokenizer.TokenizerError, match="WordPiece"):
        tokenizer.load(tmp_path)
    with pytest.raises(UnsupportedDecoderError, match="none"):
        piece_bytes(None)
