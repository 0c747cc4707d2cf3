"""The configuration reference, made from the settings' own declarations, so that it cannot differ from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

from pydantic import AliasChoices
from pydantic.fields import FieldInfo

from signalbox.configuration import ROOT, Configuration

_HEAD = """# Configuration

<!-- Made by `make configuration` from platform/signalbox/configuration.py: change it there. -->

Everything that can be set from outside is an environment variable, read once when a process starts. Nothing needs to be
set to begin with. A wrong value stops the process with a message that names the variable.

| variable | default | what it does |
| --- | --- | --- |
"""


def page() -> str:
    """The page's Markdown."""
    rows = (_row(name, field) for name, field in Configuration.model_fields.items())
    return _HEAD + "\n".join(rows) + "\n"


def _row(name: str, field: FieldInfo) -> str:
    description = " ".join((field.description or "").split())
    return f"| `{variable(name, field)}` | {_default(field)} | {description}{_range(field)} |"


def variable(name: str, field: FieldInfo) -> str:
    """The environment variable of a setting."""
    if isinstance(field.validation_alias, AliasChoices):
        return str(field.validation_alias.choices[0])
    return f"SIGNALBOX_{name.upper()}"


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        within = field.get_default(call_default_factory=True, validated_data={"state_dir": Path()})
        return f"`{within}` in the state directory"
    default: Any = field.default
    if isinstance(default, Path):
        return f"`{default.relative_to(ROOT)}` in the checkout"
    if isinstance(default, list):
        return f"`{','.join(default)}`" if default else "none"
    if isinstance(default, bool):
        return "`true`" if default else "`false`"
    return f"`{default}`" if default != "" else "none"


def _range(field: FieldInfo) -> str:
    """The values that are allowed, where not every one is."""
    choices = [str(choice) for choice in get_args(field.annotation) if isinstance(choice, str)]
    if choices:
        return " One of " + ", ".join(f"`{choice}`" for choice in choices) + "."
    words = {"ge": "at least", "gt": "more than", "le": "at most", "lt": "less than"}
    limits = [
        f"{word} {getattr(limit, attribute):g}"
        for limit in field.metadata
        for attribute, word in words.items()
        if hasattr(limit, attribute)
    ]
    return f" {', '.join(limits).capitalize()}." if limits else ""
