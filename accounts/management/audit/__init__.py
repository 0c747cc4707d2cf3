"""The verbs of ``manage.py audit``, a module each: what it is called is the module's name, its class is named after it.

``rotate_key.RotateKey`` is ``manage.py audit rotate-key``. A module that is put here is a verb: there is no list.
"""

from __future__ import annotations

import pkgutil
from abc import ABC, abstractmethod
from argparse import ArgumentParser
from importlib import import_module
from typing import Any, ClassVar

from django.core.management.base import OutputWrapper


class Verb(ABC):
    """One verb. It raises ``CommandError`` where it fails: the command then ends with status 1 and that message."""

    #: One line, as ``manage.py audit --help`` shows it.
    help: ClassVar[str]

    def add_arguments(self, parser: ArgumentParser) -> None:  # noqa: B027 — many have none
        """Declare the verb's own options."""

    @abstractmethod
    def run(self, stdout: OutputWrapper, options: dict[str, Any]) -> None:
        """Do it. ``stdout`` is the command's, and ends each line; progress and remarks belong on the standard error."""


def verbs() -> dict[str, Verb]:
    """Every verb by the name that it is called by."""
    modules = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return {name.replace("_", "-"): _verb(name) for name in modules}


def _verb(name: str) -> Verb:
    class_name = "".join(word.capitalize() for word in name.split("_"))
    verb: type = getattr(import_module(f"{__name__}.{name}"), class_name)
    if not issubclass(verb, Verb):
        raise TypeError(f"{verb} is to be a Verb")
    return verb()
