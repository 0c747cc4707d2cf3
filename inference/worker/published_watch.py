"""Follows what operators publish for all tenants of the worker's model."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, datetime

import structlog

from inference import published_prefixes
from inference.models import LanguageModel
from inference.tokenization.system_prefix import system_prefix
from inference.tokenization.template import TemplateError
from inference.tokenization.tokenizer import Tokenizer

_log = structlog.get_logger(__name__)


class PublishedWatch:
    """Reads the published system prompts and calls ``apply`` with their tokens when they have changed.

    Templates may write the date into a system prompt, so each day has tokens of its own.
    """

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        apply: Callable[[tuple[tuple[int, ...], ...]], object],
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._apply = apply
        self._rendered: tuple[list[str], date] | None = None

    def __call__(self) -> None:
        """Read them, and apply what has changed."""
        read = published_prefixes.live_texts(self._model), datetime.now().astimezone().date()
        if read == self._rendered:
            return
        prefixes = [prefix for text in read[0] if (prefix := self._tokens_of(text))]
        self._apply(tuple(prefixes))
        self._rendered = read
        if prefixes:
            _log.info("prefixes_published", tokens=[len(prefix) for prefix in prefixes])

    def _tokens_of(self, text: str) -> tuple[int, ...] | None:
        try:
            return tuple(system_prefix(self._tokenizer, text))
        except TemplateError as error:  # the model was prepared anew since it was published
            _log.warning("published_prefix_not_used", problem=error.problem.value, error=str(error))
            return None
