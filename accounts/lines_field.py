"""A form's field for a list of texts."""

from __future__ import annotations

from typing import Any

from django import forms


class LinesField(forms.CharField):
    """Texts, one a line: a list without empty lines, without space around them, each once. Not required."""

    widget = forms.Textarea

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(required=False, strip=False, **kwargs)

    def to_python(self, value: Any) -> Any:
        if isinstance(value, list):
            return value
        lines = (line.strip() for line in str(super().to_python(value)).splitlines())
        return list(dict.fromkeys(line for line in lines if line))

    def prepare_value(self, value: Any) -> Any:
        return "\n".join(value) if isinstance(value, list) else value
