"""Weights of any kind that mlx-lm loads, as float32. Imports MLX."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from mlx.utils import tree_flatten
from mlx_lm.utils import dequantize_model, load_model

from inference.engine.preparation.check import mlx_refusals
from inference.engine.preparation.progress import Progress
from inference.engine.preparation.record import FileRecord
from inference.engine.preparation.source import require_memory, require_space
from inference.engine.preparation.weights_file import TensorGroup, TensorSpec, write_weights


def write_float32(
    source: Path, directory: Path, progress: Progress
) -> tuple[dict[str, Any], dict[str, FileRecord]]:
    """Widen or dequantize ``source``'s weights into ``directory``; returns the fitting config.json and the files.

    On a CPU float32 is the fastest type by far. Weights are read as they are written, one at a time.
    """
    with mlx_refusals(source.name):
        model, config = load_model(source, lazy=True)
        parameters = dict(tree_flatten(dequantize_model(model).parameters()))
        del model
    for key in ("quantization", "quantization_config"):
        config.pop(key, None)
    config["torch_dtype"] = "float32"
    groups = [_group(name, parameters) for name in list(parameters)]
    total = sum(group.nbytes for group in groups)
    require_memory(total, "float32")
    require_space(directory, total)
    with progress("Converting the weights", total) as advance, mlx_refusals(source.name):
        return config, write_weights(directory, groups, advance)


def _group(name: str, parameters: dict[str, mx.array]) -> TensorGroup:
    def load() -> Sequence[npt.NDArray[Any]]:
        array = parameters.pop(name)
        return [np.array(array.astype(mx.float32) if floating else array)]

    floating = mx.issubdtype(parameters[name].dtype, mx.floating)
    dtype = "F32" if floating else {mx.int32: "I32", mx.uint32: "U32", mx.uint8: "U8"}[parameters[name].dtype]
    return TensorGroup((TensorSpec(name, dtype, tuple(parameters[name].shape)),), load)
