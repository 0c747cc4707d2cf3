"""``manage.py model``: one line for everything that goes wrong, and nothing half-done."""

from __future__ import annotations

import contextlib
import io
import os
import pty
import shutil
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from accounts.models import AuditEvent
from inference.models import LanguageModel
from signalbox.configuration import ROOT, configuration
from tests.factories import GenerationFactory, LanguageModelFactory, SpeculationVerdictFactory
from tests.inference.engine.preparation.tiny_gguf import write_gguf
from tests.inference.engine.tiny_model import make_tiny_model

pytestmark = pytest.mark.django_db


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sources")
    return write_gguf(make_tiny_model(directory / "tiny"), directory / "Tiny.gguf")


@pytest.fixture(autouse=True)
def _empty_models_directory() -> Iterator[None]:
    yield
    shutil.rmtree(configuration().models_dir, ignore_errors=True)


def model(*arguments: object) -> str:
    out = io.StringIO()
    call_command("model", *map(str, arguments), stdout=out, stderr=io.StringIO())
    return out.getvalue()


def test_adding_prepares_and_offers(gguf_file: Path) -> None:
    assert model("add", gguf_file) == "tiny is ready: llama, context 512, float32, 1 MB.\n"
    row = LanguageModel.objects.get(name="tiny")
    assert row.path == configuration().models_dir.resolve() / "tiny"
    assert model("list").startswith("tiny  offered\n    llama, context 512, float32, 1 MB, from ")
    assert "4 files agree" in model("verify", "tiny")


def _all_of(screen: io.FileIO) -> bytes:
    drawn = b""
    with contextlib.suppress(OSError):  # how Linux says that the other end is closed
        while part := screen.read(65536):
            drawn += part
    return drawn


def test_a_terminal_sees_a_bar_for_each_stage_that_ends_full(
    gguf_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))
    with os.fdopen(theirs, "w", encoding="utf-8") as terminal, monkeypatch.context() as patched:
        patched.setattr(sys, "stderr", terminal)
        model("add", gguf_file)
    with os.fdopen(ours, "rb", buffering=0) as screen:
        drawn = _all_of(screen).decode()
    # A line is drawn over and over, each time from its beginning.
    stages = [stage.split("\r")[1:] for stage in drawn.split("\r\n") if stage]
    assert [frames[-1].partition(":")[0] for frames in stages] == [
        "Reading Tiny.gguf",
        "Converting the weights",
    ]
    for frames in stages:
        assert "0%|" in frames[0]
        assert "100%|█" in frames[-1]
        assert all(len(frame) <= 80 for frame in frames)


def test_adding_again_is_no_mistake(gguf_file: Path) -> None:
    assert model("add", gguf_file) == model("add", gguf_file)


def test_if_missing_does_not_look_at_the_source(gguf_file: Path) -> None:
    model("add", gguf_file, "--name", "tiny")
    LanguageModel.objects.all().delete()
    assert model("add", "/nothing/here.whl", "--name", "tiny", "--if-missing").startswith("tiny is ready")
    assert LanguageModel.objects.filter(name="tiny", retired_at=None).exists()


def test_scheduling_changes_what_is_named_and_says_how_it_is_now() -> None:
    LanguageModelFactory(name="tiny", slots=4)
    out = model("schedule", "tiny", "--slots", 2, "--kv-budget-mib=64", "--preemption", "False")
    row = LanguageModel.objects.get(name="tiny")
    assert (row.slots, row.kv_budget_mib, row.preemption) == (2, 64, False)
    assert "slots                  2" in out
    assert "kv_budget_mib          -" in model("schedule", "tiny", "--kv-budget-mib", "none")
    event = AuditEvent.objects.filter(action="scheduler_settings.change").latest("sequence")
    assert event.after["kv_budget_mib"] is None


def test_speculation_is_scheduled_by_names(tmp_path: Path) -> None:
    for name in ("tiny", "small"):
        LanguageModelFactory(name=name, directory=str(make_tiny_model(tmp_path / name)))
    out = model("schedule", "tiny", "--drafter=draft_model", "--draft-model=small", "--speculation=on")
    assert "draft_model            small" in out
    assert "drafter                draft_model" in out
    out = model("schedule", "tiny", "--drafter=none", "--draft-model=none", "--grant-rounds=0")
    row = LanguageModel.objects.get(name="tiny")
    assert (row.drafter, row.draft_model, row.speculation, row.grant_rounds) == ("", None, "on", 0)
    assert "drafter                -" in out


def test_a_model_is_profiled_again() -> None:
    SpeculationVerdictFactory(language_model=LanguageModelFactory(name="tiny"))
    assert model("profile", "tiny") == "1 verdict of tiny forgotten: it is profiled again.\n"
    assert model("profile", "tiny") == "Nothing was measured for tiny yet.\n"
    assert AuditEvent.objects.get().action == "language_model.profile_again"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--slots", "0"), "greater than or equal to 1"),
        (("--slots", "few"), "integer"),
        (("--prefill-interval", "0"), "starve"),
        (("--speculation", "sometimes"), "not a valid choice"),
        (("--drafter", "draft_model"), "Choose the model that guesses"),
        (("--draft-model", "nobody"), "There is no model named 'nobody'"),
    ],
)
def test_settings_that_cannot_be_are_refused_in_one_line(arguments: tuple[str, str], words: str) -> None:
    LanguageModelFactory(name="tiny")
    with pytest.raises(CommandError, match=words):
        model("schedule", "tiny", *arguments)


def test_removing_retires_and_deletes(gguf_file: Path) -> None:
    model("add", gguf_file)
    assert model("remove", "tiny") == "tiny is no longer offered, and its files are deleted.\n"
    assert not (configuration().models_dir / "tiny").exists()
    assert model("list") == "tiny  retired\n"
    model("add", gguf_file)
    assert model("list").startswith("tiny  offered\n")


def test_a_model_that_is_waited_for_keeps_its_files(gguf_file: Path) -> None:
    model("add", gguf_file)
    GenerationFactory(model=LanguageModel.objects.get(name="tiny"), state="running")
    with pytest.raises(CommandError, match="1 generations still wait for it or run"):
        model("remove", "tiny")
    assert LanguageModel.objects.get(name="tiny").retired_at is not None
    assert (configuration().models_dir / "tiny" / "signalbox.json").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["add", "/nothing/here.gguf"], "There is no file or directory"),
        (["add", "/etc"], "it has no config.json"),
        (["add", "/etc/hostname"], "neither a GGUF file nor a wheel"),
        (["verify", "nothing"], "holds no prepared model"),
        (["profile", "nothing"], "There is no model named 'nothing'"),
        (["remove", "nothing"], "There is no model named 'nothing'"),
        (["verify", "../up"], "cannot be a model's id"),
    ],
)
def test_mistakes_are_one_line(arguments: list[str], words: str) -> None:
    with pytest.raises(CommandError, match=words) as refusal:
        model(*arguments)
    assert "\n" not in str(refusal.value)


def test_the_shell_sees_one_line_and_status_1(tmp_path: Path) -> None:
    """On an installation whose database has no tables yet."""
    (tmp_path / "vendor").mkdir()
    environment = {"SIGNALBOX_STATE_DIR": str(tmp_path), "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "manage.py", "model", "add", "/nothing/here.gguf"]
    finished = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert finished.returncode == 1
    assert finished.stderr.splitlines()[-1].startswith("CommandError: The database cannot be used")
    assert finished.stderr.splitlines()[-1].endswith("If it is new, run `manage.py migrate` first.")
    assert "Traceback" not in finished.stderr
