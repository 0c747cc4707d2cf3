"""Pools on disk: what a file holds, where it lies, and how a tenant's is forgotten.

Below the pools' directory::

    <model>/neutral.pool             made by `manage.py pool build`
    <model>/tenants/<tenant>.pool    what the model has produced for one tenant
    .forgotten/<tenant>              changes whenever the tenant's pools are forgotten

A file is written beside its place and renamed into it, by its owner readable only. Knows neither NumPy nor MLX, so
that whoever lists or forgets pools need not load them.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import secrets
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

_MAGIC: Final = b"signalbox pool 1\n"
_DIGEST_BYTES: Final = 32
#: Far more than a pool at its capacity.
_MOST_BYTES: Final = 64 << 20
_NAMESPACE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9-]{0,63}")
_NEUTRAL: Final = "neutral.pool"
_TENANTS: Final = "tenants"
_FORGOTTEN: Final = ".forgotten"


class PoolFileError(Exception):
    """A pool's file cannot be used; the message names it and says why."""


class PoolContent(msgspec.Struct, frozen=True, kw_only=True):
    """What a pool's file holds.

    ``vocabulary`` is the checksum of the tokens that the ids mean, and decides whether a model can use it.
    ``model`` and ``model_checksum`` say which one produced the texts. ``texts``: the oldest first, token ids as
    little-endian 32-bit words.
    """

    vocabulary: str
    model: str
    model_checksum: str
    texts: tuple[bytes, ...]

    @property
    def tokens(self) -> int:
        return sum(len(text) for text in self.texts) // 4


@dataclass(frozen=True)
class TenantPoolFile:
    """One tenant's pool of one model, as it lies on disk."""

    model: str
    namespace: str
    path: Path


def write(path: Path, content: PoolContent) -> None:
    """Put a pool's file in its place, whole or not at all. Raises ``OSError``."""
    body = zlib.compress(msgspec.msgpack.encode(content), 6)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # Its mode is 600 from the beginning.
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(_MAGIC + hashlib.sha256(body).digest() + body)
            file.flush()
            os.fsync(file.fileno())
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def read(path: Path) -> PoolContent:
    """A pool's file. Raises ``FileNotFoundError`` where there is none, ``PoolFileError`` where it cannot be used."""
    try:
        written = path.read_bytes()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise PoolFileError(f"{path} cannot be read ({error}).") from error
    digest, body = written[len(_MAGIC) :][:_DIGEST_BYTES], written[len(_MAGIC) + _DIGEST_BYTES :]
    if not written.startswith(_MAGIC) or hashlib.sha256(body).digest() != digest:
        raise PoolFileError(f"{path} is damaged: it does not have the checksum that it was written with.")
    try:
        content = msgspec.msgpack.decode(zlib.decompressobj().decompress(body, _MOST_BYTES), type=PoolContent)
    except (zlib.error, msgspec.MsgspecError) as error:
        raise PoolFileError(f"{path} is not a pool that this version knows ({error}).") from error
    if any(len(text) % 4 for text in content.texts):
        raise PoolFileError(f"{path} holds texts that are no token ids.")
    return content


def neutral_path(pools_dir: Path, model: str) -> Path:
    """Where the neutral pool lies that was built for a model on this machine."""
    return _model_dir(pools_dir, model) / _NEUTRAL


def tenant_path(pools_dir: Path, model: str, namespace: str) -> Path:
    """Where a tenant's pool of a model lies. Raises ``ValueError`` for what cannot be a tenant's id."""
    return _model_dir(pools_dir, model) / _TENANTS / f"{_checked(namespace)}.pool"


def tenant_files(pools_dir: Path) -> list[TenantPoolFile]:
    """Every tenant's pools, by model and tenant."""
    return [
        TenantPoolFile(path.parent.parent.name.replace("--", "/"), path.stem, path)
        for path in sorted(pools_dir.glob(f"[!.]*/{_TENANTS}/*.pool"))
    ]


@contextmanager
def locked(pools_dir: Path) -> Iterator[None]:
    """Keep other processes from writing and forgetting pools meanwhile; waits until none does."""
    pools_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (pools_dir / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def forget(pools_dir: Path, namespace: str) -> list[TenantPoolFile]:
    """Delete a tenant's pools of all models, and tell the workers that have them; which ones lay on disk.

    A worker that has it in memory uses it no more from its next ``PoolStore.synchronise`` on, and never writes it.
    """
    marker = _marker(pools_dir, namespace)
    with locked(pools_dir):
        # First, so that what cannot be deleted is not used any more at least.
        marker.parent.mkdir(mode=0o700, exist_ok=True)
        marker.write_text(secrets.token_hex(16))
        found = [file for file in tenant_files(pools_dir) if file.namespace == namespace]
        for file in found:
            file.path.unlink(missing_ok=True)
    return found


def last_forgotten(pools_dir: Path, namespace: str) -> str:
    """Changes whenever the tenant's pools are forgotten."""
    try:
        return _marker(pools_dir, namespace).read_text()
    except FileNotFoundError:
        return ""


def _model_dir(pools_dir: Path, model: str) -> Path:
    return pools_dir / model.replace("/", "--")


def _marker(pools_dir: Path, namespace: str) -> Path:
    return pools_dir / _FORGOTTEN / _checked(namespace)


def _checked(namespace: str) -> str:
    if not _NAMESPACE.fullmatch(namespace):
        raise ValueError(
            f"{namespace!r} cannot name a tenant's pool: letters, digits and '-' only, 64 at most."
        )
    return namespace
