"""A complete prepared model directory, small enough to make on the fly.

A two-layer llama with random weights and a real byte-level BPE tokenizer (trained here, on the text
below), ChatML template included. Nothing in it is a stand-in: the engine, the tokenizer and the worker
run it exactly as they run a real model, only faster.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, Final

from tokenizers import Tokenizer, decoders, pre_tokenizers, trainers
from tokenizers.models import BPE

from inference.engine.preparation.record import FileRecord, ModelRecord, write_record

CONTEXT_LENGTH: Final = 512
END_OF_TEXT: Final = "<|endoftext|>"
TURN_START: Final = "<|im_start|>"
TURN_END: Final = "<|im_end|>"
SPECIAL_TOKENS: Final = (END_OF_TEXT, TURN_START, TURN_END)

CHAT_TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

_TRAINING_TEXT: Final = (
    "The signal box sets the lanes, and on a single-track section one token admits one train at a time.",
    "A short prompt hardly costs anything; a long one is run chunk by chunk between the decode ticks.",
    "Who was given priority, when, and why? The record says so, and nobody can change the record.",
    "for tick in range(10):\n    print(tick, 'decode')\n\n    # one model action a tick\n",
    "Grüße aus Zürich: naïve café, Ångström, señor, こんにちは世界, 信号箱, 안녕하세요, 👍🏽 🚂 👩‍👩‍👧.",
    "0 1 2 3 4 5 6 7 8 9 10 11 12 2026",
)


def make_tiny_model(
    path: Path, *, seed: int = 0, context_length: int = CONTEXT_LENGTH, sliding_window: int | None = None
) -> Path:
    """Write a prepared model directory at ``path`` and return it.

    With a ``sliding_window`` the first layer attends to so many tokens only, on a rotating cache.
    The same ``seed`` gives the same weights, so the same text. Greedy decoding never ends by itself
    (the logits of the special tokens are always 0, below the best of the others): a test that wants
    an end of text raises it with ``logit_bias``.
    """
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = _train_tokenizer()
    vocab_size = tokenizer.get_vocab_size()
    special_ids = list(range(len(SPECIAL_TOKENS)))  # the trainer puts them first
    end_of_text, _, turn_end = special_ids

    tokenizer.save(str(path / "tokenizer.json"))
    _write_json(
        path / "tokenizer_config.json",
        {
            "chat_template": CHAT_TEMPLATE,
            "bos_token": TURN_START,
            "eos_token": TURN_END,
            "model_max_length": context_length,
        },
    )
    config: dict[str, Any] = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": vocab_size,
        "max_position_embeddings": context_length,
        "tie_word_embeddings": False,
        "eos_token_id": turn_end,
    }
    if sliding_window is not None:
        config |= {
            "sliding_window": sliding_window,
            "layer_types": ["sliding_attention", "full_attention"],
        }
    _write_json(path / "config.json", config)
    _write_weights(path / "model.safetensors", config, silent_ids=special_ids, seed=seed)

    names = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json")
    contents = {name: (path / name).read_bytes() for name in names}
    write_record(
        path,
        ModelRecord(
            name=path.name,
            architecture="llama",
            context_length=context_length,
            vocab_size=vocab_size,
            eos_token_ids=[end_of_text, turn_end],
            has_chat_template=True,
            quantization="",
            dtype="float32",
            precision="native",
            source=f"random weights, seed {seed}",
            source_checksum=hashlib.sha256(contents["model.safetensors"]).hexdigest(),
            files={
                name: FileRecord(len(content), hashlib.sha256(content).hexdigest())
                for name, content in contents.items()
            },
        ),
    )
    return path


def _train_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=512,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_TRAINING_TEXT, trainer)
    return tokenizer


def _write_weights(path: Path, config: dict[str, Any], *, silent_ids: list[int], seed: int) -> None:
    # Imported here: tests of the web process use only the tokenizer's files and stay without MLX.
    import mlx.core as mx
    from mlx.utils import tree_flatten
    from mlx_lm.models.llama import Model, ModelArgs

    model = Model(ModelArgs.from_dict(config))  # type: ignore[no-untyped-call]
    parameters: list[tuple[str, mx.array]] = tree_flatten(model.parameters())  # type: ignore[assignment]
    shapes = {name: parameter.shape for name, parameter in parameters}
    weights: dict[str, mx.array] = {}
    for index, (name, shape) in enumerate(sorted(shapes.items())):
        if len(shape) == 1:
            weights[name] = mx.ones(shape)
            continue
        key = mx.random.key(seed * len(shapes) + index)
        # Wider than an initialisation for training: attention has to matter for the text to vary.
        weights[name] = mx.random.normal(shape, key=key) * (2.0 / shape[-1] ** 0.5)
    weights["lm_head.weight"][mx.array(silent_ids)] = 0.0
    mx.save_safetensors(str(path), weights, metadata={"format": "mlx"})


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False), encoding="utf-8")
