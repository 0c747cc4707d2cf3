"""Safetensors files: written in one pass with constant memory, and checked before anything maps them."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from inference.engine.preparation.problems import PreparationError, Problem
from inference.engine.preparation.progress import Advance
from inference.engine.preparation.record import FileRecord

#: Bytes of one element, by the format's name for the type.
ELEMENT_BYTES = dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1)
ELEMENT_BYTES |= dict.fromkeys(("U16", "I16", "F16", "BF16"), 2)
ELEMENT_BYTES |= dict.fromkeys(("U32", "I32", "F32"), 4)
ELEMENT_BYTES |= dict.fromkeys(("U64", "I64", "F64", "C64"), 8)
DTYPE_NAMES = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}
_MAX_HEADER_BYTES = 100_000_000
_SHARD_BYTES = 4 << 30


@dataclass(frozen=True)
class TensorSpec:
    """Name, element type and shape of one tensor to be written."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return ELEMENT_BYTES[self.dtype] * math.prod(self.shape)


@dataclass(frozen=True)
class TensorGroup:
    """Tensors that come out of one reading (a packed weight with its scales and biases)."""

    specs: tuple[TensorSpec, ...]
    load: Callable[[], Sequence[npt.NDArray[Any]]]

    @property
    def nbytes(self) -> int:
        return sum(spec.nbytes for spec in self.specs)


def write_weights(directory: Path, groups: Sequence[TensorGroup], advance: Advance) -> dict[str, FileRecord]:
    """Write ``model.safetensors``, or shards of some 4 GiB, and return their records by file name.

    Only one group is in memory at a time.
    """
    shards: list[list[TensorGroup]] = [[]]
    filled = 0
    for group in groups:
        if shards[-1] and filled + group.nbytes > _SHARD_BYTES:
            shards.append([])
            filled = 0
        shards[-1].append(group)
        filled += group.nbytes
    records = {}
    for number, shard in enumerate(shards, 1):
        name = (
            f"model-{number:05}-of-{len(shards):05}.safetensors" if len(shards) > 1 else "model.safetensors"
        )
        records[name] = _write_file(directory / name, shard, advance)
    return records


def _write_file(path: Path, groups: Sequence[TensorGroup], advance: Advance) -> FileRecord:
    header: dict[str, object] = {"__metadata__": {"format": "mlx"}}
    end = 0
    for spec in (spec for group in groups for spec in group.specs):
        begin, end = end, end + spec.nbytes
        header[spec.name] = {"dtype": spec.dtype, "shape": spec.shape, "data_offsets": [begin, end]}
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % 8)
    digest = hashlib.sha256()
    with path.open("wb") as file:

        def write(content: bytes | memoryview) -> None:
            file.write(content)
            digest.update(content)

        write(len(encoded).to_bytes(8, "little") + encoded)
        for group in groups:
            for spec, array in zip(group.specs, group.load(), strict=True):
                if array.nbytes != spec.nbytes or array.shape != spec.shape:
                    raise PreparationError(
                        Problem.CORRUPT, f"{spec.name} came out as {array.shape}, expected {spec.shape}."
                    )
                write(np.ascontiguousarray(array).data.cast("B"))
                advance(spec.nbytes)
        file.flush()
        os.fsync(file.fileno())
        return FileRecord(file.tell(), digest.hexdigest())


@dataclass(frozen=True)
class WeightsSummary:
    """What the headers of some safetensors files say."""

    tensors: dict[str, TensorSpec]

    @property
    def dtype(self) -> str:
        """MLX's name of the floating type that most tensors have."""
        counts = Counter(spec.dtype for spec in self.tensors.values() if spec.dtype in DTYPE_NAMES)
        return DTYPE_NAMES[counts.most_common(1)[0][0]] if counts else "float32"


def read_headers(paths: Sequence[Path]) -> WeightsSummary:
    """Read and check the headers of safetensors files.

    Raises ``PreparationError`` for one that is cut short or is no such file.
    """
    return WeightsSummary({spec.name: spec for path in paths for spec in _read_header(path)})


def _read_header(path: Path) -> Iterator[TensorSpec]:
    size = path.stat().st_size
    with path.open("rb") as file:
        header_size = int.from_bytes(file.read(8), "little")
        if size < 8 or header_size > min(_MAX_HEADER_BYTES, size - 8):
            raise PreparationError(
                Problem.TRUNCATED, f"{path.name} is not a whole safetensors file. Download it again."
            )
        content = file.read(header_size)
    try:
        header = json.loads(content)
        header.pop("__metadata__", None)
        entries = [
            (TensorSpec(name, entry["dtype"], tuple(entry["shape"])), tuple(map(int, entry["data_offsets"])))
            for name, entry in header.items()
        ]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise PreparationError(
            Problem.CORRUPT, f"The header of {path.name} is not a safetensors header. Download it again."
        ) from None
    for spec, (begin, end) in entries:
        if spec.dtype not in ELEMENT_BYTES:
            raise PreparationError(
                Problem.UNSUPPORTED_QUANTIZATION,
                f"{path.name}: {spec.name} has the unknown type {spec.dtype}.",
            )
        if min(begin, end - begin, *spec.shape, 0) < 0 or end - begin != spec.nbytes:
            raise PreparationError(
                Problem.CORRUPT, f"{path.name}: the place of {spec.name} does not fit its shape."
            )
        if 8 + header_size + end > size:
            raise PreparationError(
                Problem.TRUNCATED,
                f"{path.name} ends in the middle of its weights ({size:,} bytes). Download it again.",
            )
        yield spec
