"""Tokenizers of the formats that models come in, trained here on a few lines, and their references."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import tokenizers
from tokenizers import AddedToken, decoders, normalizers, pre_tokenizers, processors, trainers
from tokenizers.models import BPE, Unigram

from inference.tokenization import tokenizer

TEXT: Final = (
    "The signal box sets the lanes and one token admits one train at a time.",
    "Grüße, naïve café, こんにちは, 信号箱, 👍🏽 and e\u0301 are characters too.",
    "if tick:\n    decode()\n\n  # two  spaces   and three",
)
BEGIN: Final = "<|begin|>"
END: Final = "<|end|>"
#: Marked as ordinary by its maker, a control token all the same.
CALL: Final = "<call>"


def byte_level() -> tokenizers.Tokenizer:
    """As in GPT-2, Llama 3, Qwen."""
    made = tokenizers.Tokenizer(BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    _train(made, trainers.BpeTrainer, initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()))
    made.add_tokens([AddedToken("  ", special=False, normalized=False)])
    return made


def byte_fallback() -> tokenizers.Tokenizer:
    """As in Llama 2, Mistral, Phi-3: SentencePiece BPE, unknown characters as bytes."""
    pieces = [f"<0x{byte:02X}>" for byte in range(0x100)]
    made = tokenizers.Tokenizer(BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    made.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1, right=0),
        ]
    )
    _train(made, trainers.BpeTrainer, specials=("<unk>", *pieces))
    definition = json.loads(made.to_str())
    definition["added_tokens"] = [t for t in definition["added_tokens"] if t["content"] not in pieces]
    return tokenizers.Tokenizer.from_str(json.dumps(definition))


def unigram() -> tokenizers.Tokenizer:
    """As in T5's descendants: its vocabulary itself lists the control tokens as pieces."""
    made = tokenizers.Tokenizer(Unigram())
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    made.decoder = decoders.Metaspace(prepend_scheme="first")
    _train(made, trainers.UnigramTrainer, specials=("<unk>",), unk_token="<unk>")
    return made


FORMATS: Final[dict[str, Callable[[], tokenizers.Tokenizer]]] = {
    "byte-level": byte_level,
    "byte-fallback": byte_fallback,
    "unigram": unigram,
}


@dataclass(frozen=True)
class Format:
    """Our tokenizer, and the one it has to agree with."""

    ours: tokenizer.Tokenizer
    reference: tokenizers.Tokenizer

    def reference_ids(self, text: str) -> list[int]:
        return self.reference.encode(text, add_special_tokens=False).ids

    @property
    def control_ids(self) -> set[int]:
        return {self.id_of(BEGIN), self.id_of(END), self.id_of(CALL)}

    def id_of(self, spelling: str) -> int:
        token = self.reference.token_to_id(spelling)
        assert token is not None
        return token


def write_format(path: Path, name: str, chat_template: str | None = None) -> Format:
    """Write a prepared directory's tokenizer files, and load them."""
    reference = FORMATS[name]()
    reference.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, reference.token_to_id(BEGIN))]
    )
    path.mkdir(parents=True, exist_ok=True)
    reference.save(str(path / "tokenizer.json"))
    config: dict[str, Any] = {"bos_token": BEGIN, "eos_token": {"content": END}}
    if chat_template is not None:
        config["chat_template"] = chat_template
    record = {"vocab_size": reference.get_vocab_size() + 8, "eos_token_ids": [reference.token_to_id(END)]}
    (path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    (path / "signalbox.json").write_text(json.dumps(record), encoding="utf-8")
    return Format(ours=tokenizer.load(path), reference=reference)


def _train(made: tokenizers.Tokenizer, trainer: Any, specials: tuple[str, ...] = (), **options: Any) -> None:
    special_tokens = [*specials, BEGIN, END]
    made.train_from_iterator(
        TEXT,
        trainer(
            vocab_size=300 + len(special_tokens),
            special_tokens=special_tokens,
            show_progress=False,
            **options,
        ),
    )
    made.add_tokens([AddedToken(CALL, special=False, normalized=False)])
