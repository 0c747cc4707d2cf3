"""The tiny model as a GGUF file, written the way llama.cpp's converter writes one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import gguf.quants
import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType
from safetensors.numpy import load_file

_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}

Weights = dict[str, npt.NDArray[np.float32]]


def write_gguf(
    model_dir: Path,
    path: Path,
    matrices: GGMLQuantizationType = GGMLQuantizationType.F32,
    *,
    metadata: Mapping[str, Any] | None = None,
    architecture: str = "llama",
    pre: str = "gpt-2",
    without: tuple[str, ...] = (),
    change: Callable[[Weights], Weights] = lambda weights: weights,
) -> Path:
    """Write the model in ``model_dir`` (safetensors, by Hugging Face's names) as a GGUF file.

    ``change`` alters the weights, by GGUF's names, before they are written; ``metadata`` adds integers,
    floats and texts; keys that start with one of ``without`` are left out.
    """
    config = json.loads((model_dir / "config.json").read_text())
    tokenizer = json.loads((model_dir / "tokenizer.json").read_text())
    tokenizer_config = json.loads((model_dir / "tokenizer_config.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    tokens = sorted(vocabulary, key=vocabulary.__getitem__)
    special = {token["content"] for token in tokenizer["added_tokens"]}
    integers = {
        f"{architecture}.context_length": config["max_position_embeddings"],
        f"{architecture}.embedding_length": config["hidden_size"],
        f"{architecture}.block_count": config["num_hidden_layers"],
        f"{architecture}.feed_forward_length": config["intermediate_size"],
        f"{architecture}.attention.head_count": config["num_attention_heads"],
        f"{architecture}.attention.head_count_kv": config["num_key_value_heads"],
        "tokenizer.ggml.eos_token_id": vocabulary[tokenizer_config["eos_token"]],
        "tokenizer.ggml.bos_token_id": vocabulary[tokenizer_config["bos_token"]],
    }
    values: dict[str, Any] = {
        **integers,
        f"{architecture}.attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        f"{architecture}.rope.freq_base": config["rope_theta"],
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3 if token in special else 1 for token in tokens],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in tokenizer["model"]["merges"]],
        "tokenizer.chat_template": tokenizer_config["chat_template"],
        **(metadata or {}),
    }
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in values.items():
        if key.startswith(without):
            continue
        if isinstance(value, str):
            writer.add_string(key, value)
        elif isinstance(value, list):
            writer.add_array(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_uint32(key, value)
    weights = {_gguf_name(name): array for name, array in load_file(model_dir / "model.safetensors").items()}
    for name, array in change(_permuted(weights, config)).items():
        kind = matrices if array.ndim > 1 else GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def rounded(model_dir: Path, matrices: GGMLQuantizationType) -> Weights:
    """The model's weights, by Hugging Face's names, as a file with ``matrices`` would keep them."""
    return {
        name: gguf.quants.dequantize(gguf.quants.quantize(array, matrices), matrices)
        if array.ndim > 1
        else array
        for name, array in load_file(model_dir / "model.safetensors").items()
    }


def _gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
    return f"blk.{layer[1]}.{_NAMES[layer[2]]}.{kind}" if layer else f"{_NAMES[stem]}.{kind}"


def _permuted(weights: Weights, config: Mapping[str, Any]) -> Weights:
    """Interleave the halves of each query and key head, as llama.cpp's rotation wants them."""
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    result = {}
    for name, array in weights.items():
        part = name.split(".")[-2]
        if part in heads:
            by_half = array.reshape(heads[part], 2, array.shape[0] // heads[part] // 2, *array.shape[1:])
            array = by_half.swapaxes(1, 2).reshape(array.shape)
        result[name] = array
    return result
