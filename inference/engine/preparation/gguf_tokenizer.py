"""A GGUF's tokenizer as ``tokenizer.json`` and ``tokenizer_config.json``, by llama.cpp's rules."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from inference.engine.preparation.gguf_file import GgufFile
from inference.engine.preparation.problems import PreparationError, Problem

_CONTROL, _USER_DEFINED = 3, 4
#: llama.cpp ends a generation at these control tokens too, whatever the file declares.
_END_TEXTS = frozenset(
    {"<|endoftext|>", "<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<|end_of_text|>"}
)
_GPT2_SPLIT = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class _Splitting:
    """How text is cut into words before merging, by the name in ``tokenizer.ggml.pre``."""

    pattern: str
    single_digits: bool = False
    whole_words_first: bool = False
    adds_bos: bool = False


_SPLITTINGS = {
    "gpt-2": _Splitting(_GPT2_SPLIT),
    "smollm": _Splitting(_GPT2_SPLIT, single_digits=True),
    "llama-bpe": _Splitting(_LLAMA3_SPLIT, whole_words_first=True, adds_bos=True),
}


@dataclass(frozen=True)
class GgufTokenizer:
    """The converted tokenizer. ``eos_token_ids`` has the declared one first."""

    tokenizer: Tokenizer
    config: dict[str, Any]
    eos_token_ids: list[int]
    bos_token_id: int | None

    @property
    def has_chat_template(self) -> bool:
        return "chat_template" in self.config

    def save(self, directory: Path) -> None:
        self.tokenizer.save(str(directory / "tokenizer.json"))


def read_tokenizer(file: GgufFile) -> GgufTokenizer:
    """Build the tokenizer from the metadata.

    Raises ``PreparationError`` for a kind that is not byte-level BPE or splits by unknown rules.
    """
    metadata = file.metadata
    kind, pre = metadata.get("tokenizer.ggml.model"), metadata.get("tokenizer.ggml.pre")
    if kind is None:
        raise PreparationError(
            Problem.INCOMPLETE, f"{file.path.name} holds no tokenizer. Take a whole model."
        )
    if kind != "gpt2":
        raise _unsupported(file, f"is of the kind {kind!r}")
    if pre not in _SPLITTINGS:
        raise _unsupported(file, f"splits text by the rules of {pre!r}")
    splitting = _SPLITTINGS[pre]
    tokens, merges = _strings(file, "tokens"), _strings(file, "merges")
    types = metadata.get("tokenizer.ggml.token_type", [])
    if len(set(tokens)) != len(tokens) or len(types) not in (0, len(tokens)):
        raise PreparationError(
            Problem.CORRUPT,
            f"{file.path.name}: tokens and their types do not fit together. Take another file.",
        )
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    if any(not vocabulary.keys() >= {left, right, left + right} for left, right in pairs):
        raise PreparationError(
            Problem.CORRUPT, f"{file.path.name}: a merge names a token that is not in the vocabulary."
        )
    tokenizer = Tokenizer(BPE(vocabulary, pairs, ignore_merges=splitting.whole_words_first))
    digits = [pre_tokenizers.Digits(individual_digits=True)] if splitting.single_digits else []
    words = pre_tokenizers.Split(Regex(splitting.pattern), behavior="isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, words, bytes_])
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, type_ in zip(tokens, types) if type_ == _CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    own = [token for token, type_ in zip(tokens, types) if type_ == _USER_DEFINED]
    tokenizer.add_tokens([AddedToken(token, special=False, normalized=False) for token in own])

    declared = [_token_id(file, f"{name}_token_id", tokens) for name in ("eos", "eot", "eom")]
    known = [vocabulary[token] for token in control if token in _END_TEXTS]
    eos = list(dict.fromkeys(number for number in (*declared, *known) if number is not None))
    if not eos:
        raise PreparationError(
            Problem.INCOMPLETE, f"{file.path.name} names no token that ends an answer. Take another file."
        )
    bos = _token_id(file, "bos_token_id", tokens)
    adds_bos = bool(metadata.get("tokenizer.ggml.add_bos_token", splitting.adds_bos)) and bos is not None
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "add_bos_token": adds_bos,
        "eos_token": tokens[eos[0]],
        "clean_up_tokenization_spaces": False,
        "model_max_length": metadata.get(f"{metadata.get('general.architecture')}.context_length"),
    }
    for name in ("bos", "pad", "unk"):
        number = _token_id(file, f"{_METADATA_NAMES[name]}_token_id", tokens)
        if number is not None:
            config[f"{name}_token"] = tokens[number]
    if template := metadata.get("tokenizer.chat_template"):
        config["chat_template"] = template
    if adds_bos and bos is not None:
        tokenizer.post_processor = TemplateProcessing(
            single=f"{tokens[bos]} $A", special_tokens=[(tokens[bos], bos)]
        )
    return GgufTokenizer(tokenizer, config, eos, bos)


_METADATA_NAMES = {"bos": "bos", "pad": "padding", "unk": "unknown"}


def _strings(file: GgufFile, name: str) -> list[str]:
    value = file.metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise PreparationError(
            Problem.INCOMPLETE, f"{file.path.name} has no tokenizer {name}. Take a whole model."
        )
    return value


def _token_id(file: GgufFile, key: str, tokens: list[str]) -> int | None:
    value = file.metadata.get(f"tokenizer.ggml.{key}")
    if value is None:
        return None
    if not isinstance(value, int) or not 0 <= value < len(tokens):
        raise PreparationError(Problem.CORRUPT, f"{file.path.name}: tokenizer.ggml.{key} is {value!r}.")
    return value


def _unsupported(file: GgufFile, what: str) -> PreparationError:
    known = ", ".join(_SPLITTINGS)
    return PreparationError(
        Problem.UNSUPPORTED_TOKENIZER,
        f"The tokenizer of {file.path.name} {what}; from GGUF, byte-level BPE with the rules of {known} can be "
        "read. Take the model's MLX or safetensors form.",
    )
