"""Preparing a model: from what an operator has to what a worker loads.

Everything that needs MLX imports it late, so the web process can read what was prepared.
"""

from inference.engine.preparation.preparing import (
    default_name,
    find_source,
    list_prepared,
    model_directory,
    prepare,
    remove_prepared,
    runs_on_gpu,
)
from inference.engine.preparation.problems import PreparationError, Problem
from inference.engine.preparation.progress import Advance, Progress, unreported
from inference.engine.preparation.record import (
    FileRecord,
    ModelRecord,
    Precision,
    PreparedModel,
    read_prepared,
    verify,
)

__all__ = [
    "Advance",
    "FileRecord",
    "ModelRecord",
    "Precision",
    "PreparationError",
    "PreparedModel",
    "Problem",
    "Progress",
    "default_name",
    "find_source",
    "list_prepared",
    "model_directory",
    "prepare",
    "read_prepared",
    "remove_prepared",
    "runs_on_gpu",
    "unreported",
    "verify",
]
