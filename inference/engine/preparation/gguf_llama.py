"""A llama-architecture GGUF as MLX's llama model: its configuration and its weights by MLX's names."""

from __future__ import annotations

import re
import statistics
from typing import Any

import numpy as np
from gguf.constants import GGMLQuantizationType

from inference.engine.preparation.gguf_file import GgufFile, GgufTensor
from inference.engine.preparation.gguf_tensors import (
    GROUP_SIZE,
    PACKED_BITS,
    Rows,
    dequantize,
    floating_group,
    packed_group,
)
from inference.engine.preparation.problems import PreparationError, Problem
from inference.engine.preparation.record import Precision
from inference.engine.preparation.weights_file import TensorGroup

ARCHITECTURE = "llama"
_ROPE_FACTORS = "rope_freqs.weight"
_ROOT_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
#: Llama 3.1 and 3.2 stretch their positions by rules with these constants; GGUF keeps only the results.
_LLAMA3_FACTORS = (8.0, 32.0)
_LLAMA3_LOW, _LLAMA3_HIGH, _LLAMA3_ORIGINAL_CONTEXT = 1.0, 4.0, 8192


def llama_config(file: GgufFile, eos_token_ids: list[int], bos_token_id: int | None) -> dict[str, Any]:
    """The model's ``config.json`` as Hugging Face and mlx-lm write it, without quantization.

    Raises ``PreparationError`` for what MLX's llama cannot express.
    """
    hidden = _number(file, "embedding_length")
    heads = _number(file, "attention.head_count")
    head_dim = _number(file, "attention.key_length", hidden // max(heads, 1))
    if _number(file, "expert_count", 0):
        raise _unsupported(file, "a mixture of experts")
    if _number(file, "rope.dimension_count", head_dim) != head_dim:
        raise _unsupported(file, "rotary embedding of a part of each head")
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise PreparationError(
            Problem.INCOMPLETE, f"{file.path.name} has no token embedding. Take a whole model."
        )
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": _number(file, "block_count"),
        "intermediate_size": _number(file, "feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": _number(file, "attention.head_count_kv", heads),
        "head_dim": head_dim,
        "max_position_embeddings": _number(file, "context_length"),
        "rms_norm_eps": _float(file, "attention.layer_norm_rms_epsilon", 1e-5),
        "rope_theta": _float(file, "rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(file, head_dim),
        "vocab_size": embedding.shape[0],
        "attention_bias": "blk.0.attn_q.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "bos_token_id": bos_token_id,
        "eos_token_id": eos_token_ids,
    }


def llama_weights(
    file: GgufFile, config: dict[str, Any], precision: Precision
) -> tuple[list[TensorGroup], str]:
    """The weights to write, and their floating type ("F32", "F16" or "BF16").

    ``native`` keeps Q4_0, Q4_1 and Q8_0 packed and everything else in 16 bits; other quantizations are then
    dequantized to 16 bits.
    """
    dtype = _floating_type(file, precision)
    groups = []
    for tensor in file.tensors.values():
        if tensor.name == _ROPE_FACTORS:
            continue
        name = _mlx_name(file, tensor)
        rows = _row_order(tensor, config)
        if precision == "native" and tensor.type in PACKED_BITS:
            groups.append(packed_group(file, tensor, name.removesuffix(".weight"), rows))
        else:
            groups.append(floating_group(file, tensor, name, dtype, rows))
    return groups, dtype


def quantization(file: GgufFile, precision: Precision) -> dict[str, int] | None:
    """mlx-lm's ``quantization`` entry for packed weights; it infers the bits of layers that differ."""
    packed = [PACKED_BITS[tensor.type] for tensor in file.tensors.values() if tensor.type in PACKED_BITS]
    if precision != "native" or not packed:
        return None
    return {"group_size": GROUP_SIZE, "bits": statistics.mode(packed)}


def _floating_type(file: GgufFile, precision: Precision) -> str:
    matrices = {tensor.type for tensor in file.tensors.values() if len(tensor.shape) > 1}
    if precision == "float32" or matrices == {GGMLQuantizationType.F32}:
        return "F32"
    return "BF16" if GGMLQuantizationType.BF16 in matrices and not matrices & set(PACKED_BITS) else "F16"


def _mlx_name(file: GgufFile, tensor: GgufTensor) -> str:
    stem, _, kind = tensor.name.rpartition(".")
    layer = re.fullmatch(r"blk\.(\d+)\.(\w+)", stem)
    if layer and layer[2] in _LAYER_NAMES:
        return f"model.layers.{layer[1]}.{_LAYER_NAMES[layer[2]]}.{kind}"
    if stem in _ROOT_NAMES:
        return f"{_ROOT_NAMES[stem]}.{kind}"
    raise _unsupported(file, f"a tensor called {tensor.name}")


def _row_order(tensor: GgufTensor, config: dict[str, Any]) -> Rows:
    """The order of rows that undoes what llama.cpp does to the query and key projections.

    It rotates neighbouring dimensions of a head as pairs, MLX the first half against the second; so llama.cpp's
    conversion interleaves the halves of each head's rows, and this takes them apart again.
    """
    match = re.fullmatch(r"blk\.\d+\.attn_(q|k)\.(weight|bias)", tensor.name)
    if match is None:
        return slice(None)
    heads = config["num_attention_heads" if match[1] == "q" else "num_key_value_heads"]
    order = np.arange(tensor.shape[0]).reshape(heads, config["head_dim"] // 2, 2)
    return order.swapaxes(1, 2).reshape(-1)


def _rope_scaling(file: GgufFile, head_dim: int) -> dict[str, Any] | None:
    kind = file.metadata.get(f"{ARCHITECTURE}.rope.scaling.type", "none")
    if kind == "linear":
        return {"rope_type": "linear", "factor": _float(file, "rope.scaling.factor", 1.0)}
    if kind != "none":
        raise _unsupported(file, f"rotary scaling of the kind {kind!r}")
    if _ROPE_FACTORS not in file.tensors:
        return None
    stored = dequantize(file, file.tensors[_ROPE_FACTORS])
    for factor in _LLAMA3_FACTORS:
        expected = llama3_rope_factors(factor, _float(file, "rope.freq_base", 10000.0), head_dim)
        if stored.shape == expected.shape and np.allclose(stored, expected, rtol=1e-3):
            return {
                "rope_type": "llama3",
                "factor": factor,
                "low_freq_factor": _LLAMA3_LOW,
                "high_freq_factor": _LLAMA3_HIGH,
                "original_max_position_embeddings": _LLAMA3_ORIGINAL_CONTEXT,
            }
    raise _unsupported(file, "rotary factors that are not those of Llama 3.1 or 3.2")


def llama3_rope_factors(factor: float, base: float, head_dim: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """What Llama 3.1's rule divides each of the ``head_dim / 2`` rotation frequencies by."""
    wavelengths = 2 * np.pi * base ** (np.arange(0, head_dim, 2) / head_dim)
    blend = (_LLAMA3_ORIGINAL_CONTEXT / wavelengths - _LLAMA3_LOW) / (_LLAMA3_HIGH - _LLAMA3_LOW)
    blend = np.clip(blend, 0.0, 1.0)
    return (1 / ((1 - blend) / factor + blend)).astype(np.float32)


def _number(file: GgufFile, key: str, default: int | None = None) -> int:
    value = file.metadata.get(f"{ARCHITECTURE}.{key}", default)
    if isinstance(value, list) and len(set(value)) == 1:
        value = value[0]
    if isinstance(value, list):
        raise _unsupported(file, f"layers that differ in {key}")
    if not isinstance(value, int) or value < 0:
        raise PreparationError(
            Problem.CORRUPT, f"{file.path.name} does not say its {ARCHITECTURE}.{key}. Take another file."
        )
    return value


def _float(file: GgufFile, key: str, default: float) -> float:
    value = file.metadata.get(f"{ARCHITECTURE}.{key}", default)
    if not isinstance(value, int | float):
        raise PreparationError(Problem.CORRUPT, f"{file.path.name}: {ARCHITECTURE}.{key} is no number.")
    # Stored in 32 bits: the shortest decimal that means the same is what its author wrote.
    return float(str(np.float32(value)))


def _unsupported(file: GgufFile, what: str) -> PreparationError:
    return PreparationError(
        Problem.UNSUPPORTED_ARCHITECTURE,
        f"{file.path.name} has {what}, which cannot be taken from GGUF. Take the model's MLX or safetensors form.",
    )
