"""``GET /v1/models`` and ``GET /v1/models/{id}``."""

from __future__ import annotations

from typing import Literal

from accounts.models import Scope
from inference.api import language_models
from inference.api.answers import AnswerModel
from inference.api.endpoint import Call, endpoint
from inference.api.errors import ErrorCode
from inference.api.pages import PAGE_PARAMETERS, Page, page_of
from inference.models import LanguageModel


class Model(AnswerModel):
    """A model that requests may name."""

    id: str
    object: Literal["model"] = "model"
    created: int
    """Unix time at which it was prepared here."""
    owned_by: str = "signalbox"
    context_length: int
    """Most tokens of prompt and answer together."""
    default_max_tokens: int
    """The answer's length limit where a request names none; at most what the context leaves."""
    has_chat_template: bool
    """Whether it can answer chats; else it continues texts only."""


class ModelList(Page):
    """The models that this key may use, by name."""

    data: list[Model]


def _described(model: LanguageModel) -> Model:
    return Model(
        id=model.name,
        created=int(model.created_at.timestamp()),
        context_length=model.context_length,
        default_max_tokens=model.default_max_tokens,
        has_chat_template=model.has_chat_template,
    )


@endpoint(
    "GET",
    summary="List the models",
    tag="Models",
    scopes=(Scope.READ, Scope.INFERENCE),
    answer=ModelList,
    parameters=PAGE_PARAMETERS,
)
def list_models(call: Call) -> ModelList:
    """The models that this key may use, by name."""
    models, has_more = page_of(call.request, language_models.usable(call.principal), key="name")
    data = [_described(model) for model in models]
    return ModelList(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=has_more,
    )


@endpoint(
    "GET",
    summary="Describe a model",
    tag="Models",
    scopes=(Scope.READ, Scope.INFERENCE),
    answer=Model,
    errors=(ErrorCode.MODEL_NOT_FOUND,),
)
def retrieve_model(call: Call, model_id: str) -> Model:
    """One model. Its id may hold slashes."""
    return _described(language_models.find(model_id, call.principal))
