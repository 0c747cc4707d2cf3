"""GGUF files: their metadata and where their tensors lie.

Read strictly, because such a file comes from a stranger: every length is held against the file's size before
anything is allocated or looped over.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from inference.engine.preparation.problems import PreparationError, Problem

MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_DEFAULT_ALIGNMENT = 32
_MAX_DIMENSIONS = 4
_SCALARS: Mapping[int, np.dtype[Any]] = {
    GGUFValueType.UINT8: np.dtype("<u1"),
    GGUFValueType.INT8: np.dtype("<i1"),
    GGUFValueType.UINT16: np.dtype("<u2"),
    GGUFValueType.INT16: np.dtype("<i2"),
    GGUFValueType.UINT32: np.dtype("<u4"),
    GGUFValueType.INT32: np.dtype("<i4"),
    GGUFValueType.FLOAT32: np.dtype("<f4"),
    GGUFValueType.BOOL: np.dtype("?"),
    GGUFValueType.UINT64: np.dtype("<u8"),
    GGUFValueType.INT64: np.dtype("<i8"),
    GGUFValueType.FLOAT64: np.dtype("<f8"),
}


@dataclass(frozen=True)
class GgufTensor:
    """One tensor's place. ``shape`` is row-major: outputs before inputs, as MLX and NumPy have it."""

    name: str
    type: GGMLQuantizationType
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True)
class GgufFile:
    """The parsed head of a GGUF file; tensors are read one by one."""

    path: Path
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    def raw(self, tensor: GgufTensor) -> npt.NDArray[np.uint8]:
        """The tensor's bytes, one row of the matrix to a row."""
        content = np.fromfile(self.path, dtype=np.uint8, count=tensor.nbytes, offset=tensor.offset)
        if content.nbytes != tensor.nbytes:
            raise PreparationError(Problem.TRUNCATED, f"{self.path.name} was cut short while it was read.")
        return content.reshape(*tensor.shape[:-1], -1)


def read_gguf(path: Path) -> GgufFile:
    """Parse the head of a GGUF file.

    Raises ``PreparationError`` for another kind of file, a truncated or a damaged one.
    """
    with path.open("rb") as file:
        reader = _Reader(file, path)
        if reader.take(4) != MAGIC:
            raise PreparationError(
                Problem.NOT_A_MODEL, f"{path.name} is not a GGUF file (its first bytes are others)."
            )
        version = reader.number("<I")
        if version not in _VERSIONS:
            raise PreparationError(
                Problem.NOT_A_MODEL, f"{path.name} has GGUF version {version}; versions 2 and 3 can be read."
            )
        tensor_count, value_count = reader.number("<Q"), reader.number("<Q")
        metadata: dict[str, Any] = {}
        for _ in range(value_count):
            key = reader.string()
            metadata[key] = reader.value(reader.number("<I"))
        infos = [reader.tensor_info() for _ in range(tensor_count)]
        alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment <= 0 or alignment & (alignment - 1):
            raise reader.corrupt(f"its alignment is {alignment}")
        data_begin = -(-file.tell() // alignment) * alignment
        tensors: dict[str, GgufTensor] = {}
        for name, shape, type_, offset in infos:
            block, block_bytes = GGML_QUANT_SIZES[type_]
            if not shape or shape[-1] % block:
                raise reader.corrupt(f"rows of {name} are no multiple of {type_.name}'s block")
            tensor = GgufTensor(
                name, type_, shape, data_begin + offset, math.prod(shape) // block * block_bytes
            )
            if name in tensors:
                raise reader.corrupt(f"it holds {name} twice")
            if tensor.offset + tensor.nbytes > reader.size:
                raise PreparationError(
                    Problem.TRUNCATED,
                    f"{path.name} ends in the middle of its weights ({reader.size:,} bytes instead of at least "
                    f"{tensor.offset + tensor.nbytes:,}). Download it again.",
                )
            tensors[name] = tensor
    return GgufFile(path, metadata, tensors)


class _Reader:
    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file = file
        self._path = path
        self.size = path.stat().st_size

    def corrupt(self, what: str) -> PreparationError:
        return PreparationError(Problem.CORRUPT, f"{self._path.name} is damaged: {what}. Download it again.")

    def take(self, count: int) -> bytes:
        if count > self.size - self._file.tell():
            raise PreparationError(
                Problem.TRUNCATED, f"{self._path.name} ends in the middle of its head ({self.size:,} bytes)."
            )
        return self._file.read(count)

    def number(self, layout: str) -> int:
        value: int = struct.unpack(layout, self.take(struct.calcsize(layout)))[0]
        return value

    def string(self) -> str:
        try:
            return self.take(self.number("<Q")).decode()
        except UnicodeDecodeError:
            raise self.corrupt("a name or text in it is not UTF-8") from None

    def value(self, kind: int) -> Any:
        if kind == GGUFValueType.STRING:
            return self.string()
        if kind == GGUFValueType.ARRAY:
            element, count = self.number("<I"), self.number("<Q")
            if element == GGUFValueType.STRING:
                return [self.string() for _ in range(count)]
            return self._scalars(element, count).tolist()
        return self._scalars(kind, 1)[0].item()

    def _scalars(self, kind: int, count: int) -> npt.NDArray[Any]:
        if (dtype := _SCALARS.get(kind)) is None:
            raise self.corrupt(f"a value in it has the unknown kind {kind}")
        return np.frombuffer(self.take(count * dtype.itemsize), dtype)

    def tensor_info(self) -> tuple[str, tuple[int, ...], GGMLQuantizationType, int]:
        name = self.string()
        dimensions = self.number("<I")
        if dimensions > _MAX_DIMENSIONS:
            raise self.corrupt(f"{name} has {dimensions} dimensions")
        shape = tuple(self.number("<Q") for _ in range(dimensions))[::-1]
        kind = self.number("<I")
        try:
            type_ = GGMLQuantizationType(kind)
        except ValueError:
            raise PreparationError(
                Problem.UNSUPPORTED_QUANTIZATION,
                f"{self._path.name}: {name} has the unknown type {kind}. Take a file of another quantization.",
            ) from None
        return name, shape, type_, self.number("<Q")
