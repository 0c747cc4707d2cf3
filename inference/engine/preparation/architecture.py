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
