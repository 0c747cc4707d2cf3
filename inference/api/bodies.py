"""From a request's bytes to a body that can only be valid, or to an error that names what is wrong with which field."""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import Any, Final, TypeVar

from django.conf import settings
from django.http import HttpRequest
from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails, from_json

from inference.api.errors import ApiError, ErrorCode, shown
from inference.api.fields import INVALID, OUT_OF_RANGE, UNSUPPORTED

Body = TypeVar("Body", bound=BaseModel)

#: Objects, lists and fields of a body, at most. Signs inside of texts count, and a long context's worth of source code
#: stays below; millions of empty objects would hold the interpreter, and every stream with it, for seconds.
MAX_NODES: Final = 250_000

#: The one spelling of a NUL in JSON: no database text may hold it.
_NUL: Final = re.compile(rb"(?<!\\)(?:\\\\)*\\u0000")

#: What ``param`` says where the body itself is at fault.
_WHOLE: Final = "body"
#: And where the header is that says what it is.
_CONTENT_TYPE: Final = "Content-Type"

#: Names that begin so are branches of a union, not fields: they stand in pydantic's locations only.
BRANCH: Final = "|"

_EXPECTED: Final = {
    "string_type": "a string",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
    "bool_type": "true or false",
    "list_type": "a list",
    "dict_type": "an object",
    "model_type": "an object",
    "model_attributes_type": "an object",
}
_KIND_OF: Final = {
    str: "a string",
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    list: "a list",
    dict: "an object",
    type(None): "null",
}


def read_body(request: HttpRequest, model: type[Body]) -> Body:
    """The request's JSON body as a ``model``. Raises ``ApiError``: 413, 415 or 400."""
    if request.content_type != "application/json":
        given = (
            f"not {shown(request.content_type)}"
            if request.content_type
            else "and the request has no Content-Type"
        )
        raise ApiError(
            ErrorCode.UNSUPPORTED_MEDIA_TYPE,
            f"The body must be JSON, sent with `Content-Type: application/json`, {given}.",
            param=_CONTENT_TYPE,
        )
    if (request.content_params or {}).get("charset", "utf-8").lower() not in ("utf-8", "utf8"):
        raise ApiError(ErrorCode.UNSUPPORTED_MEDIA_TYPE, "The JSON body must be UTF-8.", param=_CONTENT_TYPE)
    limit = settings.DATA_UPLOAD_MAX_MEMORY_SIZE
    body = request.read(limit + 1)
    if len(body) > limit:
        raise ApiError(ErrorCode.REQUEST_TOO_LARGE, f"The request body is larger than {limit} bytes.")
    return validate(model, body)


def validate(model: type[Body], body: bytes | str) -> Body:
    """``body``, a JSON text, as a ``model``. Raises ``ApiError`` for its first mistake."""
    if isinstance(body, str):
        body = body.encode("utf-8", "surrogatepass")
    if sum(body.count(sign) for sign in (b"{", b"[", b'":')) > MAX_NODES:
        raise ApiError(
            ErrorCode.INVALID_VALUE,
            f"The body holds more than {MAX_NODES} objects, lists and fields together.",
        )
    try:
        valid = model.model_validate_json(body)
    except ValidationError as error:
        raise _as_error(error.errors(include_url=False)[0], model) from None
    if _NUL.search(body):
        param = _param(_where_nul_is(from_json(body))) or _WHOLE
        raise ApiError(
            ErrorCode.INVALID_VALUE, f"`{shown(param)}` must not hold the character NUL.", param=param
        )
    return valid


def _where_nul_is(body: Any) -> list[int | str]:
    """The location of the first text, or the object of the first name, with a NUL in it."""
    open_: list[tuple[list[int | str], Any]] = [([], body)]
    while open_:
        location, value = open_.pop()
        match value:
            case str() if "\0" in value:
                return location
            case dict():
                if any("\0" in name for name in value):
                    return location
                open_ += [([*location, name], inner) for name, inner in reversed(value.items())]
            case list():
                open_ += [([*location, index], inner) for index, inner in reversed([*enumerate(value)])]
    return []


def _as_error(error: ErrorDetails, model: type[BaseModel]) -> ApiError:
    context = error.get("ctx", {})
    location = [*error["loc"], *([context["param"]] if "param" in context else [])]
    param = _param(location)
    field = f"`{shown(param)}`" if param else "The body"
    match error["type"]:
        case "json_invalid":
            return ApiError(
                ErrorCode.INVALID_JSON, f"The body is not valid JSON: {context['error']}.", param=_WHOLE
            )
        case "missing":
            return ApiError(ErrorCode.MISSING_REQUIRED_PARAMETER, f"{field} is required.", param=param)
        case "extra_forbidden":
            return ApiError(
                ErrorCode.UNSUPPORTED_PARAMETER,
                f"{field} is not a parameter that this server knows.{_suggestion(location, model)}",
                param=param,
            )
        case kind if kind == UNSUPPORTED:
            return ApiError(ErrorCode.UNSUPPORTED_PARAMETER, f"{field} {error['msg']}.", param=param)
        case kind if kind in _EXPECTED:
            given = "" if kind == "finite_number" else f", not {_kind_of(error['input'])}"
            return ApiError(
                ErrorCode.INVALID_TYPE, f"{field} must be {_EXPECTED[kind]}{given}.", param=param or _WHOLE
            )
        case kind if kind == OUT_OF_RANGE:
            return ApiError(
                ErrorCode.INVALID_VALUE,
                f"{field} {error['msg']}, not {_number(error['input'])}.",
                param=param,
            )
        case "string_too_short" | "too_short" | "string_too_long" | "too_long":
            return ApiError(ErrorCode.INVALID_VALUE, f"{field} {_length_problem(error)}.", param=param)
        case "literal_error":
            return ApiError(ErrorCode.INVALID_VALUE, f"{field} must be {context['expected']}.", param=param)
        case kind if kind == INVALID:
            return ApiError(ErrorCode.INVALID_VALUE, f"{field} {error['msg']}.", param=param)
        case _:
            return ApiError(ErrorCode.INVALID_VALUE, f"{field} is not valid: {error['msg']}.", param=param)


def _param(location: list[int | str]) -> str:
    """``("messages", 0, "|user", "content")`` as ``messages[0].content``."""
    path = ""
    for part in location:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not part.startswith(BRANCH):
            path += f".{part}" if path else part
    return path


def _kind_of(value: Any) -> str:
    return _KIND_OF.get(type(value), type(value).__name__)


def _number(value: Any) -> str:
    return shown(str(value))


def _length_problem(error: ErrorDetails) -> str:
    context = error["ctx"]
    unit = "characters" if error["type"].startswith("string") else "entries"
    if "max_length" in context:
        return f"must have at most {context['max_length']} {unit}"
    if context["min_length"] == 1:
        return "must not be empty"
    return f"must have at least {context['min_length']} {unit}"


def _suggestion(location: list[int | str], model: type[BaseModel]) -> str:
    if len(location) != 1:
        return ""
    near = get_close_matches(str(location[0]), _sent_names(model), n=1, cutoff=0.8)
    return f" Did you mean `{near[0]}`?" if near else ""


def _sent_names(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]
