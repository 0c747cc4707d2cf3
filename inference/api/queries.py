"""Query strings, held to a declaration as bodies are: what is not declared is refused by name.

The same declaration gives the parameters' description, so that what is described is what is checked.
"""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any, Final, TypeVar

from django.http import HttpRequest

from inference.api.bodies import validate
from inference.api.endpoint import Parameter
from inference.api.errors import ApiError, ErrorCode, shown
from inference.api.fields import RequestModel

Query = TypeVar("Query", bound="QueryModel")

#: OpenAI's clients write a list's name so, once for each entry.
_LIST_SUFFIX: Final = "[]"
_WHOLE_NUMBER: Final = re.compile(r"-?[0-9]{1,18}")
_FLAGS: Final = {"true": True, "false": False}


class QueryModel(RequestModel):
    """The parameters of a query string. Fields are texts, whole numbers, flags, and lists of texts."""


class NoQuery(QueryModel):
    """Of a route that takes no parameter."""


def read_query(request: HttpRequest, model: type[Query]) -> Query:
    """The request's query string as a ``model``. Raises ``ApiError`` 400, which names the parameter."""
    schemas = _schemas(model)
    values: dict[str, Any] = {}
    for sent, texts in request.GET.lists():
        name = sent.removesuffix(_LIST_SUFFIX)
        schema = schemas.get(name)
        if schema is None or (name != sent and schema["type"] != "array"):
            values[sent] = texts[-1]
        elif schema["type"] == "array":
            values.setdefault(name, []).extend(texts)
        elif len(texts) > 1:
            raise _invalid(name, "must be given once")
        else:
            values[name] = _value(name, texts[0], schema["type"])
    return validate(model, json.dumps(values))


@cache
def parameters_of(model: type[QueryModel]) -> tuple[Parameter, ...]:
    """The description of a route's query string."""
    return tuple(
        Parameter(
            name=name,
            schema={key: value for key, value in schema.items() if key not in ("title", "description")},
            description=schema["description"],
            required=name in _required(model),
        )
        for name, schema in _schemas(model).items()
    )


@cache
def _schemas(model: type[QueryModel]) -> dict[str, dict[str, Any]]:
    return {
        name: _without_null(schema)
        for name, schema in model.model_json_schema().get("properties", {}).items()
    }


def _required(model: type[QueryModel]) -> frozenset[str]:
    """The parameters without which there is no answer, by the names that they are sent under."""
    return frozenset(field.alias or name for name, field in model.model_fields.items() if field.is_required())


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """A query string has no null: what is absent is left out."""
    choices = [choice for choice in schema.pop("anyOf", ()) if choice != {"type": "null"}]
    if schema.get("default", ...) is None:
        del schema["default"]
    return {**schema, **choices[0]} if choices else schema


def _value(name: str, text: str, kind: str) -> str | int | bool:
    if kind == "integer":
        if not _WHOLE_NUMBER.fullmatch(text):
            raise _invalid(name, f"must be a whole number, not {shown(text) or 'empty'}")
        return int(text)
    if kind == "boolean":
        if text not in _FLAGS:
            raise _invalid(name, "must be `true` or `false`")
        return _FLAGS[text]
    return text


def _invalid(name: str, problem: str) -> ApiError:
    return ApiError(ErrorCode.INVALID_VALUE, f"`{name}` {problem}.", param=name)
