"""An engine for the commands that run a model."""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog
from django.core.management.base import CommandError

from inference.engine.blas import BlasError, load_blas
from inference.models import LanguageModel
from signalbox.configuration import configuration

if TYPE_CHECKING:
    from inference.engine.engine import Engine

_log = structlog.get_logger(__name__)


def load_engine(model: LanguageModel) -> Engine:
    """The engine, behind the BLAS that has to be there before it.

    Raises ``CommandError`` if either cannot be had.
    """
    settings = configuration()
    try:
        blas = load_blas(settings.blas_dir, settings.blas, settings.blas_threads or None)
    except BlasError as error:
        raise CommandError(str(error)) from error
    _log.info("blas_loaded", blas=str(blas), kind=blas.kind.value)
    if blas.warning:
        _log.warning("blas_slow", remedy=blas.warning)
    # Only now: this imports MLX.
    from inference.engine.engine import Engine
    from inference.engine.preparation import PreparationError
    from inference.tokenization.tokenizer import TokenizerError

    try:
        engine = Engine(model.path)
    except (PreparationError, TokenizerError) as error:
        raise CommandError(f"The model {model.name!r} cannot be served: {error}") from error
    _log.info("model_loaded", model=model.name, device=engine.device)
    return engine
