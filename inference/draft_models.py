"""Which model may guess the tokens of which: as far as can be told without loading either."""

from __future__ import annotations

from django.db.models import QuerySet

from inference.models import LanguageModel
from inference.tokenization import vocabulary
from inference.tokenization.tokenizer import TokenizerError


def candidates(model: LanguageModel) -> QuerySet[LanguageModel]:
    """The models that may be chosen to guess for ``model``: all others that are offered, and the one it has."""
    offered = LanguageModel.objects.filter(retired_at=None).exclude(pk=model.pk)
    present = LanguageModel.objects.filter(drafts_for=model)
    return (offered | present).distinct()


def objection(model: LanguageModel, draft_model: LanguageModel) -> str | None:
    """Why ``draft_model`` cannot guess for ``model``, and what to do; None: nothing speaks against it.

    Reads the tokenizers of both, which takes up to a second or two where vocabularies are large.
    """
    if draft_model.retired_at is not None:
        return f"{draft_model} is retired: add it again, or choose another model."
    try:
        difference = vocabulary.difference(model.path, draft_model.path)
    except TokenizerError as error:
        return f"The vocabularies of {model} and {draft_model} cannot be compared: {error}"
    if difference is not None:
        return (
            f"{draft_model} has another vocabulary than {model}, so that its guesses would mean something else "
            f"({difference}). Choose a model of the same family."
        )
    return None
