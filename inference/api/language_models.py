"""Which models a caller may use. All that are not retired are offered to every tenant; a key may be held to some."""

from __future__ import annotations

from django.db.models import QuerySet

from accounts.principal import Principal
from inference.api.errors import ApiError, ErrorCode, shown
from inference.models import LanguageModel


def offered() -> QuerySet[LanguageModel]:
    """The models that may be named in a request, by name."""
    return LanguageModel.objects.filter(retired_at=None).order_by("name")


def usable(principal: Principal) -> QuerySet[LanguageModel]:
    """Those of them that ``principal`` may use."""
    if not principal.allowed_models:
        return offered()
    return offered().filter(name__in=principal.allowed_models)


def find(name: str, principal: Principal) -> LanguageModel:
    """The model called ``name``, if it is offered and ``principal`` may use it. Raises ``ApiError`` 404 for others."""
    model = offered().filter(name=name).first() if principal.may_use(name) else None
    if model is None:
        raise ApiError(
            ErrorCode.MODEL_NOT_FOUND,
            f"The model `{shown(name)}` does not exist here. `GET /v1/models` lists those that do.",
            param="model",
        )
    return model
