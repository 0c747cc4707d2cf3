"""GGUF's tensor types as arrays that MLX takes: packed where MLX has the same packing, else dequantized."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gguf.quants
import numpy as np
import numpy.typing as npt
from gguf.constants import GGMLQuantizationType

from inference.engine.preparation.gguf_file import GgufFile, GgufTensor
from inference.engine.preparation.problems import PreparationError, Problem
from inference.engine.preparation.weights_file import TensorGroup, TensorSpec

#: Elements that share a scale in the packed types.
GROUP_SIZE = 32
#: Types whose bits MLX's affine quantization can hold as they are, and bits per weight.
PACKED_BITS = {GGMLQuantizationType.Q4_0: 4, GGMLQuantizationType.Q4_1: 4, GGMLQuantizationType.Q8_0: 8}

Rows = npt.NDArray[np.intp] | slice


def floating_group(file: GgufFile, tensor: GgufTensor, name: str, dtype: str, rows: Rows) -> TensorGroup:
    """``tensor`` dequantized to ``dtype`` ("F32", "F16" or "BF16") under ``name``, its rows reordered."""

    def load() -> Sequence[npt.NDArray[Any]]:
        return [to_dtype(dequantize(file, tensor)[rows], dtype)]

    return TensorGroup((TensorSpec(name, dtype, tensor.shape),), load)


def packed_group(file: GgufFile, tensor: GgufTensor, prefix: str, rows: Rows) -> TensorGroup:
    """``tensor`` in MLX's affine packing: ``{prefix}.weight``, ``.scales`` and ``.biases``, rows reordered.

    A weight is ``scale * q + bias`` with unsigned q, least significant bits first in a 32-bit word.
    """
    outputs, inputs = tensor.shape
    bits = PACKED_BITS[tensor.type]
    groups = (outputs, inputs // GROUP_SIZE)
    specs = (
        TensorSpec(f"{prefix}.weight", "U32", (outputs, inputs * bits // 32)),
        TensorSpec(f"{prefix}.scales", "F16", groups),
        TensorSpec(f"{prefix}.biases", "F16", groups),
    )

    def load() -> Sequence[npt.NDArray[Any]]:
        return [array[rows] for array in pack(file.raw(tensor), tensor.type)]

    return TensorGroup(specs, load)


def pack(raw: npt.NDArray[np.uint8], kind: GGMLQuantizationType) -> tuple[npt.NDArray[Any], ...]:
    """Rows of GGUF blocks as (words u32, scales f16, biases f16)."""
    offset = 4 if kind is GGMLQuantizationType.Q4_1 else 2
    bits = PACKED_BITS[kind]
    blocks = raw.reshape(raw.shape[0], -1, offset + GROUP_SIZE * bits // 8)
    halves = np.ascontiguousarray(blocks[..., :offset]).view("<f2")
    quants = blocks[..., offset:]
    scales = halves[..., 0]
    if bits == 4:
        # A block's first 16 weights are in the low halves of its bytes, the other 16 in the high halves.
        in_order = np.concatenate([quants & 0x0F, quants >> 4], axis=-1)
        words = in_order[..., 0::2] | in_order[..., 1::2] << 4
        biases = halves[..., 1] if kind is GGMLQuantizationType.Q4_1 else scales * np.float16(-8)
    else:
        words = quants ^ 0x80  # signed to unsigned: plus 128
        biases = scales * np.float16(-128)
    return np.ascontiguousarray(words).reshape(raw.shape[0], -1).view("<u4"), scales, biases


def dequantize(file: GgufFile, tensor: GgufTensor) -> npt.NDArray[np.float32]:
    """The tensor in float32.

    Raises ``PreparationError`` for a type that cannot be read.
    """
    raw = file.raw(tensor)
    if tensor.type is GGMLQuantizationType.F32:
        return raw.view("<f4")
    if tensor.type is GGMLQuantizationType.F16:
        return raw.view("<f2").astype(np.float32)
    try:
        values: npt.NDArray[np.float32] = gguf.quants.dequantize(raw, tensor.type)
    except NotImplementedError:
        raise PreparationError(
            Problem.UNSUPPORTED_QUANTIZATION,
            f"{file.path.name}: {tensor.name} has the type {tensor.type.name}, which cannot be read here. Take "
            "a file in Q4_0, Q4_1, Q8_0 or a K-quant.",
        ) from None
    return values.reshape(tensor.shape)


def to_dtype(values: npt.NDArray[np.float32], dtype: str) -> npt.NDArray[Any]:
    """float32 as ``dtype``; bfloat16, which NumPy lacks, as its 16-bit words, rounded to nearest even."""
    if dtype == "F32":
        return values
    if dtype == "F16":
        return values.astype(np.float16)
    words = np.ascontiguousarray(values).view(np.uint32)
    return ((words + 0x7FFF + (words >> 16 & 1)) >> 16).astype(np.uint16)
