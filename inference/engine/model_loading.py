"""Loading a prepared model: weights and configuration only, never code."""

from __future__ import annotations

from pathlib import Path

from mlx.nn.layers.base import Module
from mlx_lm.utils import load_model

from inference.engine.cpu_attention import use_cpu_attention
from inference.engine.preparation.check import mlx_refusals
from inference.engine.preparation.record import ModelRecord, read_prepared, verify


def load_prepared(model_dir: Path) -> tuple[Module, ModelRecord]:
    """The model in a prepared directory, evaluated and ready to run, and its record.

    mlx-lm builds it from its own classes, refuses a configuration that names code of its own, and
    reads safetensors: no file in the directory is executed or unpickled.

    Raises ``PreparationError``, in one line, when a file is missing, cut short, or does not fit.
    """
    prepared = read_prepared(model_dir)
    verify(prepared)
    use_cpu_attention()
    with mlx_refusals(prepared.record.name):
        model, _ = load_model(model_dir, trust_remote_code=False)
    return model, prepared.record
