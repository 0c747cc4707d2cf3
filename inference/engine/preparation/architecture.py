"""Whether mlx-lm knows an architecture."""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from inference.engine.preparation.problems import PreparationError, Problem


def require_architecture(config: Mapping[str, Any], model: str) -> None:
    """Refuse a model whose ``model_type`` the installed mlx-lm cannot build. Imports MLX."""
    model_type = config.get("model_type")
    if model_type is None:
        raise not_recorded(model, "model_type in config.json")
    # It becomes part of a module's name, and comes from a stranger.
    if isinstance(model_type, str) and re.fullmatch(r"\w+(-\w+)*", model_type):
        from mlx_lm.utils import _get_classes

        try:
            _get_classes(dict(config))
        except ValueError:
            pass
        else:
            return
    raise PreparationError(
        Problem.UNSUPPORTED_ARCHITECTURE,
        f"{model} has the architecture {model_type!r}, which mlx-lm {version('mlx-lm')} does not know. Take another "
        "model or a newer mlx-lm.",
    )


def not_recorded(model: str, field: str) -> PreparationError:
    """What refuses a model that does not tell its architecture, which ``field`` should hold."""
    return PreparationError(
        Problem.INCOMPLETE,
        f"{model} has no architecture recorded ({field}), so nobody can tell how to run it. Take another copy of it.",
    )
