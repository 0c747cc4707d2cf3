"""Which model `manage.py worker` serves, and what it says when that is not clear or not there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.utils import timezone

from inference.management.commands.worker import model_to_serve
from inference.models import LanguageModel
from signalbox.configuration import ROOT
from tests.factories import LanguageModelFactory

pytestmark = pytest.mark.django_db


def offered(name: str, directory: Path, *, retired: bool = False) -> LanguageModel:
    (directory / "signalbox.json").touch()
    return LanguageModelFactory.create(
        name=name, directory=str(directory), retired_at=timezone.now() if retired else None
    )


def test_without_a_name_it_is_the_only_one_that_is_offered(tmp_path: Path) -> None:
    offered("old", tmp_path, retired=True)
    only = offered("only", tmp_path)
    assert model_to_serve(None) == only


def test_a_name_decides_whatever_else_there_is(tmp_path: Path) -> None:
    offered("first", tmp_path)
    second = offered("second", tmp_path, retired=True)
    assert model_to_serve("second") == second


def test_of_several_one_has_to_be_named_and_the_error_names_them(tmp_path: Path) -> None:
    offered("second", tmp_path)
    offered("first", tmp_path)
    offered("old", tmp_path, retired=True)
    with pytest.raises(CommandError, match=r"Name one: first, second\.$"):
        call_command("worker")


def test_where_nothing_is_offered_it_says_how_to_get_a_model(tmp_path: Path) -> None:
    offered("old", tmp_path, retired=True)
    with pytest.raises(CommandError, match=r"No model is offered .* `make up` prepares it\.$"):
        call_command("worker")


def test_the_model_that_set_up_brings_is_prepared_again_by_set_up(tmp_path: Path) -> None:
    LanguageModelFactory.create(name="smollm2-135m-instruct", directory=str(tmp_path))
    LanguageModelFactory.create(name="mine", directory=str(tmp_path))
    with pytest.raises(CommandError, match=r"is not prepared: .* `make up` prepares it\.$"):
        call_command("worker", "smollm2-135m-instruct")
    with pytest.raises(CommandError, match=r"is not prepared: .* `manage\.py model add`\.$"):
        call_command("worker", "mine")


_PAGES = (
    "accounts.admin",
    "inference.admin",
    "inference.api.urls",
    "rest_framework.serializers",
    "signalbox.pages",
)
_LOADED = f"""
import django
django.setup()
import inference.management.commands.worker, sys
print([name for name in {_PAGES} if name in sys.modules])
"""


def test_a_worker_starts_without_the_pages_of_the_site() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LOADED],
        env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"
