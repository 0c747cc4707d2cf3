"""The building blocks of request bodies: a strict model, and fields whose errors name what is allowed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, model_validator
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

#: The kinds of a ``PydanticCustomError`` that ``bodies`` knows; every other one is an invalid value.
UNSUPPORTED: Final = "unsupported_parameter"
OUT_OF_RANGE: Final = "out_of_range"
INVALID: Final = "invalid_value"

#: More than any object of a request has: an error for each of a million unknown fields would take minutes.
MAX_FIELDS: Final = 200


def invalid(message: str, *, param: str | None = None) -> PydanticCustomError:
    """A refusal of a value from inside a validator. ``message`` follows the field's name: "must be …".

    ``param`` names the field where the validator stands for a whole object; it is relative to that object.
    """
    return PydanticCustomError(
        INVALID, "{message}", {"message": message, **({"param": param} if param else {})}
    )


class RequestModel(BaseModel):
    """An object of a request body: types are not coerced, and a field that it does not know is refused by name.

    A field that is ``null`` is the same as one that is absent, known or not: that is how clients spell "not set".
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        strict=True,
        extra="forbid",
        allow_inf_nan=False,
        use_attribute_docstrings=True,
        hide_input_in_errors=True,
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_absent(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if len(data) > MAX_FIELDS:
            raise invalid(f"must have at most {MAX_FIELDS} fields")
        return {name: value for name, value in data.items() if value is not None}


@dataclass(frozen=True, slots=True)
class Range:
    """A number's bounds, both inclusive unless ``above`` (then the lower one is not)."""

    low: float
    high: float
    above: bool = False

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        described = handler(schema)
        return {
            **described,
            ("exclusiveMinimum" if self.above else "minimum"): self.low,
            "maximum": self.high,
        }

    def _check(self, value: float) -> float:
        if value > self.high or value < self.low or (self.above and value == self.low):
            bounds = f"between {self.low} and {self.high}"
            if self.above:
                bounds = f"above {self.low} and at most {self.high}"
            raise PydanticCustomError(OUT_OF_RANGE, "{message}", {"message": f"must be {bounds}"})
        return value


class Unsupported:
    """A field of OpenAI's API that is not offered here: only values that ask for nothing are taken.

    As an annotation of a field of type ``object``. ``harmless`` are those values, compared with their type.
    """

    def __init__(self, *harmless: object) -> None:
        self.harmless = harmless

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return {
            "enum": [*self.harmless, None],
            "description": "Not supported: only these values are accepted.",
        }

    def _check(self, value: object) -> object:
        if any(type(value) is type(known) and value == known for known in self.harmless):
            return value
        raise PydanticCustomError(
            UNSUPPORTED, "{message}", {"message": f"is not supported by this server{self._but}"}
        )

    @property
    def _but(self) -> str:
        if not self.harmless:
            return ": leave it out"
        taken = " or ".join(f"`{json.dumps(value)}`" for value in self.harmless)
        return f": only {taken} is accepted, or leaving it out"
