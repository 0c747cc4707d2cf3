"""Set-up's own rules: what it does again, what it says when it cannot go on, what it trusts."""

from __future__ import annotations

import errno
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from scripts.set_up import environment, frontend, model, problems, stamps, steps
from scripts.set_up.commands import run
from scripts.set_up.problems import SetUpError
from signalbox.configuration import ROOT
from signalbox.supervision.instance_lock import AlreadyRunningError, InstanceLock
from tests.fixtures.live_stack import free_port

_LOCKS = sorted((ROOT / "requirements").glob("*.lock"))


def test_a_step_is_repeated_exactly_when_what_it_was_made_from_changed(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "a.js").write_text("1")
    stamp = tmp_path / "state" / "stamp"
    first = stamps.digest([source])
    assert not stamps.done(stamp, first)
    stamps.mark(stamp, first)
    assert stamps.done(stamp, stamps.digest([source]))
    (source / "a.js").rename(source / "b.js")
    assert not stamps.done(stamp, stamps.digest([source]))
    (source / "b.js").rename(source / "a.js")
    assert stamps.done(stamp, stamps.digest([source]))
    assert not stamps.done(stamp, stamps.digest([source], "another version"))


@pytest.mark.parametrize(
    ("output", "said"),
    [
        ("error: [Errno 28] No space left on device", "disk is full"),
        ("npm error code ENOSPC", "disk is full"),
        ("Temporary failure in name resolution", "registry cannot be reached"),
        ("npm error code ENOTFOUND", "registry cannot be reached"),
        ("NewConnectionError: Connection refused", "registry cannot be reached"),
        ("ERROR: No matching distribution found for mlx==0.32.4", "has no mlx==0.32.4 for Python 3."),
        ("THESE PACKAGES DO NOT MATCH THE HASHES", "DO NOT MATCH THE HASHES"),
    ],
)
def test_a_failed_command_is_explained(output: str, said: str) -> None:
    assert said in str(problems.explain("Installing", output))


def test_too_little_disk_is_said_before_anything_is_done(tmp_path: Path) -> None:
    with pytest.raises(SetUpError, match="needs 1000000000000 MB of disk"):
        problems.need_space(tmp_path / "not" / "there" / "yet", 10**12, "The model")


def test_a_first_up_without_a_network_ends_with_what_failed_and_what_to_do(tmp_path: Path) -> None:
    """`make up` in a checkout that never was set up, where nobody answers at the address of pip's index."""
    for part in ("scripts", "requirements"):
        shutil.copytree(ROOT / part, tmp_path / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "Makefile", tmp_path)
    ours = ("PIP_", "UV_", "SIGNALBOX_", "MAKE", "MFLAGS")
    alone = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    alone |= {
        "PIP_INDEX_URL": f"http://127.0.0.1:{free_port()}/simple",
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_NO_CACHE_DIR": "1",
        "PIP_RETRIES": "1",
    }
    up = subprocess.run(
        ["make", "up", f"PYTHON={sys.executable}"], cwd=tmp_path, env=alone, capture_output=True, text=True
    )
    assert up.returncode == 2, "as make ends when a command of its has failed"
    assert re.match(
        r"\nSet-up stopped: Installing uv: the package registry cannot be reached\. "
        r"The first set-up needs a network; later ones do not\. Check the connection, or the proxy and index settings",
        up.stderr,
    )
    assert up.stdout.splitlines()[-1].startswith("» Installing ")
    # It is not tried again by other means, which would fail alike.
    assert "pip does" not in up.stdout
    # What is made is whole, and nothing says that more is there.
    assert (tmp_path / ".venv" / "bin" / "python").exists()
    left = {path.name for path in (tmp_path / ".venv").iterdir() if path.name.startswith(".signalbox")}
    assert left == set()


def test_an_environment_whose_making_came_to_no_end_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted after its Python is there, and before its pip is."""
    monkeypatch.setattr(environment, "VENV", tmp_path / ".venv")
    monkeypatch.setattr(environment, "PYTHON", tmp_path / ".venv" / "bin" / "python")
    monkeypatch.setattr(environment, "_STAMP", tmp_path / ".venv" / "stamp")
    monkeypatch.setattr(environment, "_UNFINISHED", tmp_path / ".venv" / "unfinished")
    monkeypatch.setattr(environment, "_SPACE_MB", 1)
    made = []

    def create(directory: Path, **_: object) -> None:
        (directory / "bin").mkdir()
        (directory / "bin" / "python").touch()
        made.append(sorted(path.name for path in directory.iterdir()))
        if len(made) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr("venv.create", create)
    with pytest.raises(KeyboardInterrupt):
        environment._make()
    for _ in range(2):
        environment._make()
    assert made == [["bin", "unfinished"]] * 2
    assert sorted(path.name for path in (tmp_path / ".venv").iterdir()) == ["bin"]


def test_a_step_that_could_not_be_marked_leaves_its_last_stamp_whole(tmp_path: Path) -> None:
    """The limit on this process's file sizes stands in for a full disk: a part of the stamp still fits."""
    stamp = tmp_path / "stamp"
    stamps.mark(stamp, "first")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            stamps.mark(stamp, "second")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert stamps.done(stamp, "first")


@pytest.mark.parametrize(
    ("number", "said"),
    [
        (errno.ENOSPC, "the disk is full (here/stamp). Make room and try again."),
        (errno.EROFS, "the system refuses it: Read-only file system (here/stamp). Mend that and try again."),
    ],
)
def test_what_the_system_refuses_is_told_in_one_line(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    number: int,
    said: str,
) -> None:
    def write(**_: object) -> None:
        raise OSError(number, os.strerror(number), "here/stamp")

    monkeypatch.setattr(steps, "ROOT", tmp_path)
    monkeypatch.setattr(steps, "_set_up", write)
    assert steps.run(["run"]) == 1
    assert capsys.readouterr().err == f"\nSet-up stopped: {said}\n"


def test_a_commands_output_is_watched_and_its_failure_named() -> None:
    lines: list[str] = []
    run("Counting", ["sh", "-c", "echo one; echo two >&2"], watch=lines.append)
    assert lines == ["one", "two"]
    with pytest.raises(SetUpError, match=r"(?s)Counting failed.*three"):
        run("Counting", ["sh", "-c", "echo three; exit 3"])


def test_a_python_that_is_too_old_is_told_so_and_a_newer_one_taken() -> None:
    # What an old Python reads must parse there: no annotations that are evaluated, no match, no except*.
    source = (ROOT / "scripts" / "set_up" / "__main__.py").read_text()
    compile(source, "__main__.py", "exec", dont_inherit=True)
    assert "match " not in source
    assert "except*" not in source


@pytest.mark.parametrize("lock", _LOCKS, ids=lambda path: path.stem)
def test_lock_files_pin_every_package_by_hash_and_name_no_host(lock: Path) -> None:
    text = lock.read_text()
    assert not re.search(r"https?://|--(extra-)?index-url|--find-links", text)
    entries = re.split(r"\n(?=[a-z0-9])", text.strip())
    unpinned = [e.splitlines()[0] for e in entries if "==" in e.splitlines()[0] and "--hash=sha256:" not in e]
    assert unpinned == []
    assert any("==" in e for e in entries)


def test_the_browsers_lock_file_names_no_host() -> None:
    packages = json.loads((ROOT / "package-lock.json").read_text())["packages"]
    assert [name for name, package in packages.items() if "resolved" in package] == []
    assert all("integrity" in package for name, package in packages.items() if name)


def test_every_declared_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    for lock, declared in (
        ("runtime", project["project"]["dependencies"]),
        ("dev", [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]),
    ):
        pinned = set(
            re.findall(
                r"^([a-z0-9-]+)(?:\[[^]]*\])?==", (ROOT / f"requirements/{lock}.lock").read_text(), re.M
            )
        )
        names = {re.split(r"[\[<>=;~! ]", entry)[0].lower().replace("_", "-") for entry in declared}
        assert names - pinned == set(), lock


def test_make_lists_its_commands() -> None:
    listed = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert "make up" in listed
    assert "make test" in listed


_HOLD = """
import sys
from pathlib import Path
from scripts.set_up.one_at_a_time import only_one
with only_one(Path(sys.argv[1])):
    print("has it", flush=True)
    sys.stdin.readline()
"""


def _set_up_of(directory: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(directory)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_second_set_up_says_whom_it_waits_for_and_goes_on_when_that_one_is_gone(tmp_path: Path) -> None:
    first = _set_up_of(tmp_path)
    assert first.stdout is not None
    assert first.stdout.readline() == "has it\n"
    second = _set_up_of(tmp_path)
    assert second.stdout is not None
    assert f"Another set-up runs here (process {first.pid}); waiting" in second.stdout.readline()
    # Killed, not ended: the kernel lets go of the lock all the same.
    first.kill()
    first.communicate()
    assert second.stdout.readline() == "has it\n"
    second.communicate("\n")
    assert second.returncode == 0


@pytest.mark.parametrize("up_to_date", [True, False])
def test_set_up_touches_nothing_under_an_installation_that_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], up_to_date: bool
) -> None:
    lock = InstanceLock(tmp_path)
    lock.acquire()
    monkeypatch.setenv("SIGNALBOX_STATE_DIR", str(tmp_path))
    for part in (environment.install, frontend.collect, model.prepare):
        monkeypatch.setattr(
            sys.modules[part.__module__], part.__name__, lambda *_: pytest.fail("set-up went on")
        )
    monkeypatch.setattr(environment, "holds", lambda *_: up_to_date)
    monkeypatch.setattr(steps, "ROOT", tmp_path)
    assert steps.run(["run"]) == 1
    assert f"Signalbox runs on {tmp_path} already (process {os.getpid()})" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == [".set-up.lock", "up.lock"]


def test_asking_who_holds_an_installation_never_takes_it(tmp_path: Path) -> None:
    lock = InstanceLock(tmp_path)
    assert lock.holder() is None
    lock.acquire()
    assert InstanceLock(tmp_path).holder() == os.getpid()
    with pytest.raises(AlreadyRunningError, match=str(os.getpid())):
        InstanceLock(tmp_path).acquire()
