"""The OpenAPI description of the routes below ``/v1``, made from their declarations.

They are plain async views, which drf-spectacular does not see: this hook adds them, with the JSON schemas that pydantic
has of their bodies and answers. What is described is therefore what is checked and what is sent.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable
from http import HTTPStatus
from typing import Any, Final

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from inference.api.answers import AnswerModel
from inference.api.endpoint import Endpoint, Parameter
from inference.api.errors import ApiError, ErrorCode, ErrorType
from inference.api.limit_answers import ShortLimit
from inference.api.limit_headers import HEADERS
from inference.api.resource import endpoints_of

_PREFIX: Final = "/v1/"
_CONVERTER: Final = re.compile(r"<(?:\w+:)?(\w+)>")
_SECURITY: Final[list[dict[str, list[str]]]] = [{"bearer": []}, {"apiKey": []}]
#: What any route can answer, whatever it is for.
_ALWAYS: Final = (
    ErrorCode.INVALID_API_KEY,
    ErrorCode.INSUFFICIENT_SCOPE,
    ErrorCode.INTERNAL_ERROR,
    ErrorCode.SERVICE_UNAVAILABLE,
)
_WITH_A_BODY: Final = (
    ErrorCode.INVALID_JSON,
    ErrorCode.INVALID_VALUE,
    ErrorCode.UNSUPPORTED_PARAMETER,
    ErrorCode.REQUEST_TOO_LARGE,
    ErrorCode.UNSUPPORTED_MEDIA_TYPE,
)
_LIMIT_HEADERS: Final = {
    name: {"schema": {"type": "string"}, "description": description} for name, description in HEADERS.items()
}
_LANE_HEADER: Final = Parameter(
    name="X-Priority",
    location="header",
    schema={"type": "string", "enum": ["high", "normal", "low"]},
    description="The lane asked for, where the body names none.",
)


class ErrorDetail(AnswerModel):
    """What went wrong. The first four keys are always there."""

    message: str
    type: ErrorType
    param: str | None
    """The field at fault, as in `messages[0].content`."""
    code: str | None
    """What exactly went wrong; see the API's page on errors."""
    limit: ShortLimit | None = None
    """Only where a limit refused: which one, and where it stands."""


class ErrorAnswer(AnswerModel):
    """The answer to everything that went wrong."""

    error: ErrorDetail


def describe_endpoints(result: dict[str, Any], generator: Any, request: Any, public: bool) -> dict[str, Any]:
    """drf-spectacular's post-processing hook: add every endpoint below ``/v1``."""
    # Not above: the routes' module imports drf-spectacular's views, which import this hook by its setting.
    from inference.api.urls import urlpatterns

    routes = [
        (_PREFIX + _CONVERTER.sub(r"{\1}", str(pattern.pattern)), endpoint)
        for pattern in urlpatterns
        for endpoint in endpoints_of(pattern.callback)
    ]
    components = result.setdefault("components", {})
    components.setdefault("schemas", {}).update(_schemas(endpoint for _, endpoint in routes))
    components.setdefault("securitySchemes", {}).update(
        {
            "bearer": {"type": "http", "scheme": "bearer"},
            "apiKey": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
    )
    for path, endpoint in routes:
        result["paths"].setdefault(path, {})[endpoint.method.lower()] = _operation(path, endpoint)
    return result


def _schemas(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    bodies: dict[type[BaseModel], None] = {}
    answers: dict[type[BaseModel], None] = {ErrorAnswer: None}
    for endpoint in endpoints:
        bodies.update({model: None for model in (endpoint.body,) if model})
        answers.update({model: None for model in (endpoint.answer, endpoint.chunk) if model})
    _, definitions = models_json_schema(
        [*((model, "validation") for model in bodies), *((model, "serialization") for model in answers)],
        ref_template="#/components/schemas/{model}",
    )
    schemas: dict[str, Any] = definitions["$defs"]
    return schemas


def _operation(path: str, endpoint: Endpoint) -> dict[str, Any]:
    parameters = [*endpoint.parameters, *([_LANE_HEADER] if endpoint.body and endpoint.chunk else [])]
    operation: dict[str, Any] = {
        "operationId": endpoint.name,
        "summary": endpoint.summary,
        "description": inspect.cleandoc(endpoint.function.__doc__ or ""),
        "tags": [endpoint.tag],
        "security": _SECURITY,
        "parameters": [
            *(
                {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
                for name in re.findall(r"{(\w+)}", path)
            ),
            *(
                {
                    "name": p.name,
                    "in": p.location,
                    "required": p.required,
                    "schema": p.schema,
                    "description": p.description,
                }
                for p in parameters
            ),
        ],
        "responses": {"200": _success(endpoint), **_errors(endpoint)},
    }
    if endpoint.body:
        operation["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": _ref(endpoint.body)}},
        }
    return operation


def _success(endpoint: Endpoint) -> dict[str, Any]:
    content: dict[str, Any] = {}
    if endpoint.answer:
        content["application/json"] = {"schema": _ref(endpoint.answer)}
    if endpoint.chunk:
        content["text/event-stream"] = {
            "schema": {
                "type": "string",
                "description": f"Events whose data is a `{endpoint.chunk.__name__}`, then `[DONE]`.",
            }
        }
    return {"description": endpoint.summary, "headers": _LIMIT_HEADERS, "content": content}


def _errors(endpoint: Endpoint) -> dict[str, Any]:
    codes = [*endpoint.errors, *_ALWAYS, *(_WITH_A_BODY if endpoint.body else ())]
    by_status: dict[HTTPStatus, list[str]] = {}
    for code in codes:
        by_status.setdefault(ApiError(code, "").status, []).append(f"`{code.value}`")
    return {
        str(status.value): {
            "description": ", ".join(dict.fromkeys(names)),
            **({"headers": _LIMIT_HEADERS} if status != HTTPStatus.UNAUTHORIZED else {}),
            "content": {"application/json": {"schema": _ref(ErrorAnswer)}},
        }
        for status, names in sorted(by_status.items())
    }


def _ref(model: type[BaseModel]) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{model.__name__}"}
