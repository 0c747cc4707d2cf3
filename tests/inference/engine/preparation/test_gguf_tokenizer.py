"""A converted tokenizer cuts text as llama.cpp does."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass
from pathlib import Path

import pytest
import regex
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer

from inference.engine.preparation.gguf_file import read_gguf
from inference.engine.preparation.gguf_tokenizer import read_tokenizer
from tests.inference.engine.preparation.tiny_gguf import write_gguf

#: The expressions of llama.cpp, one applied to what the one before cut out.
EXPRESSIONS = {
    "gpt-2": [r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"],
    "smollm": [r"\p{N}", r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"],
    "llama-bpe": [
        r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    ],
}
#: Text of several scripts, digits of several kinds, spaces of several kinds.
#: Without control tokens, which are no text: Hypothesis finds them among the code's own constants.
TEXTS = st.text(
    st.sampled_from("aetS 's'LL\n\r\t  1234567890²½٣Ⅷ.,!?-—éßÅñ你好世界こ안👍🏽\u200d🚂\u00a0\u3000")
    | st.characters(exclude_categories=["Cs", "Cn"]),
    max_size=40,
).filter(lambda text: "<|" not in text)


@dataclass(frozen=True)
class Converted:
    pre: str
    tokenizer: Tokenizer
    merges: dict[tuple[str, str], int]


@pytest.fixture(scope="session", params=list(EXPRESSIONS))
def converted(
    request: pytest.FixtureRequest, checkpoint: Path, tmp_path_factory: pytest.TempPathFactory
) -> Converted:
    pre = str(request.param)
    path = write_gguf(checkpoint, tmp_path_factory.mktemp("gguf") / f"{pre}.gguf", pre=pre)
    tokenizer = read_tokenizer(read_gguf(path)).tokenizer
    ranked = json.loads(tokenizer.to_str())["model"]["merges"]
    return Converted(pre, tokenizer, {(left, right): rank for rank, (left, right) in enumerate(ranked)})


def by_llama_cpp(text: str, converted: Converted) -> list[int]:
    """The rules written down once more: cut by the expressions, then merge the best pair until none is left."""
    tokenizer, merges = converted.tokenizer, converted.merges
    words = [text]
    for expression in EXPRESSIONS[converted.pre]:
        words = [part for word in words for part in cut(word, expression)]
    ids = []
    for word in words:
        symbols = [BYTE_LETTERS[byte] for byte in word.encode()]
        if converted.pre == "llama-bpe" and (whole := tokenizer.token_to_id("".join(symbols))) is not None:
            ids.append(whole)
            continue
        while pairs := [
            (merges[pair], at) for at, pair in enumerate(itertools.pairwise(symbols)) if pair in merges
        ]:
            _, at = min(pairs)
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]
        ids += [tokenizer.token_to_id(symbol) for symbol in symbols]
    return ids


def cut(text: str, expression: str) -> list[str]:
    """Matches and what lies between them."""
    parts, end = [], 0
    for match in regex.finditer(expression, text):
        parts += [text[end : match.start()], match[0]]
        end = match.end()
    return [part for part in [*parts, text[end:]] if part]


def byte_letters() -> dict[int, str]:
    """GPT-2's visible letter for each byte."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    return {byte: chr(byte) for byte in visible} | {byte: chr(256 + n) for n, byte in enumerate(hidden)}


BYTE_LETTERS = byte_letters()


@pytest.mark.slow
@given(text=TEXTS)
@example(text="In 2026 the signal box, section 17½, isn't   idle:\n\n\tchunk by chunk  \n")
@example(text="  \n \r\n x")
def test_text_is_cut_and_merged_by_llama_cpps_rules(converted: Converted, text: str) -> None:
    ids = converted.tokenizer.encode(text, add_special_tokens=False).ids
    assert ids == by_llama_cpp(text, converted)
    assert converted.tokenizer.decode(ids, skip_special_tokens=False) == text


def test_control_tokens_are_whole_and_special(checkpoint: Path, tmp_path: Path) -> None:
    converted = read_tokenizer(read_gguf(write_gguf(checkpoint, tmp_path / "tiny.gguf", pre="smollm")))
    text = "<|im_start|>user\nHi<|im_end|>"
    ids = converted.tokenizer.encode(text).ids
    assert (ids[0], ids[-1]) == (1, 2)
    assert converted.tokenizer.decode(ids) == "user\nHi"
    assert converted.tokenizer.decode(ids, skip_special_tokens=False) == text
    assert [converted.config[f"{name}_token"] for name in ("bos", "eos")] == ["<|im_start|>", "<|im_end|>"]


@pytest.mark.parametrize(("pre", "expected"), [("smollm", False), ("llama-bpe", True)])
def test_a_beginning_token_is_added_where_the_model_wants_one(
    checkpoint: Path, tmp_path: Path, pre: str, expected: bool
) -> None:
    converted = read_tokenizer(read_gguf(write_gguf(checkpoint, tmp_path / "tiny.gguf", pre=pre)))
    assert converted.config["add_bos_token"] is expected
    assert (converted.tokenizer.encode("Hi").ids[0] == converted.bos_token_id) is expected
