"""Which models a caller may use. Every model that is not retired is offered to every tenant."""

from __future__ import annotations

from django.db.models import QuerySet

from inference.api.errors import ApiError, ErrorCode, shown
from inference.models import LanguageModel


def offered() -> QuerySet[LanguageModel]:
    """The models that may be named in a request, by name."""
    return LanguageModel.objects.filter(retired_at=None).order_by("name")


def find(name: str) -> LanguageModel:
    """The offered model called ``name``. Raises ``ApiError`` 404."""
    model = offered().filter(name=name).first()
    if model is None:
        raise ApiError(
            ErrorCode.MODEL_NOT_FOUND,
            f"The model `{shown(name)}` does not exist here. `GET /v1/models` lists those that do.",
            param="model",
        )
    return model
