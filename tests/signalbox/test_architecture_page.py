"""The architecture page shows every process and package that there is, and none that there is not."""

from __future__ import annotations

import inspect
import itertools
import pkgutil
import re

import accounts
import inference
import signalbox
from signalbox.configuration import ROOT
from signalbox.supervision import processes
from signalbox.supervision.child import ProcessSpec

_PAGE = (ROOT / "docs" / "architecture.md").read_text()
#: What Django wants to have its own way; the code in it is its app's.
_DJANGOS = {"management", "migrations", "templatetags"}


def boxes() -> list[str]:
    """The titles of the diagram's boxes: what stands below their upper left corners."""
    lines = _PAGE.split("```")[1].splitlines()
    return [
        below[corner.start() :].split("│")[1].strip()
        for line, below in itertools.pairwise(lines)
        for corner in re.finditer("┌", line)
    ]


def test_the_diagram_has_a_box_for_each_process_and_one_for_the_database() -> None:
    started = {
        name
        for name, function in inspect.getmembers(processes, inspect.isfunction)
        if inspect.signature(function, eval_str=True).return_annotation is ProcessSpec
    }
    assert sorted(title.split()[0].lower() for title in boxes()) == sorted({*started, "database"})


def test_the_table_lists_each_package() -> None:
    table = _PAGE.partition("## Packages")[2].partition("\n## ")[0]
    listed = {
        name
        for row in re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE)
        for name in re.findall(r"`(.+?)`", row)
    }
    there = {
        f"{app.__name__}.{module.name}"
        for app in (accounts, inference, signalbox)
        for module in pkgutil.iter_modules(app.__path__)
        if module.ispkg and module.name not in _DJANGOS
    }
    assert listed == there | {app.__name__ for app in (accounts, inference, signalbox)}
