"""Which BLAS serves MLX is a matter of the process, so every promise is tried in a process of its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from inference.engine.blas import REMEDY, BlasKind, BlasRejection, default_threads, prepare_blas

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux needs a BLAS loaded")

ROOT = Path(__file__).resolve().parents[3]

LOAD = """
import json, sys
from pathlib import Path
from inference.engine.blas import load_blas
choice = load_blas(Path(sys.argv[1]), mode=sys.argv[2])
"""
MULTIPLY = """
import mlx.core as mx, numpy
a = numpy.random.default_rng(1).standard_normal((64, 96), dtype="float32")
product, exact = mx.array(a) @ mx.array(a.T), a.astype("float64") @ a.T.astype("float64")
error = float(abs(numpy.array(product) - exact).max())
"""
REPORT = """
from inference.engine.blas import resolved_library
report = {"kind": choice.kind, "text": str(choice), "threads": choice.threads, "warning": choice.warning}
report |= {"path": str(choice.path), "resolved": str(resolved_library("cblas_sgemm"))}
report |= {"rejected": [[r.candidate, r.reason] for r in choice.rejected]}
print(json.dumps(report | globals().get("more", {})))
"""


@pytest.fixture(scope="session")
def blas_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("blas")


def run(
    script: str, *arguments: object, check: bool = True, **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script, *map(str, arguments)],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=check,
    )


def bound_to(symbol: str, linker_log: Path) -> list[str]:
    """Files that the dynamic linker gave libmlx for ``symbol``."""
    text = "".join(part.read_text() for part in linker_log.parent.glob(linker_log.name + ".*"))
    return re.findall(rf"binding file \S*libmlx\.so \[0\] to (\S+) \[0\]: normal symbol `{symbol}'", text)


@pytest.mark.slow
def test_mlx_multiplies_with_the_library_that_was_loaded(blas_dir: Path, tmp_path: Path) -> None:
    log = tmp_path / "linker"
    result = run(
        LOAD + MULTIPLY + "more = {'error': error}" + REPORT,
        *(blas_dir, "auto"),
        LD_DEBUG="bindings",
        LD_DEBUG_OUTPUT=str(log),
    )
    report = json.loads(result.stdout)
    assert report["kind"] in (BlasKind.BLIS, BlasKind.OPENBLAS)
    assert report["warning"] is None
    assert report["threads"] >= 1
    assert report["resolved"] == report["path"]
    assert bound_to("cblas_sgemm", log) == [report["path"]]
    assert report["error"] < 1e-3


def test_stock_leaves_mlx_the_blas_of_its_wheel(blas_dir: Path, tmp_path: Path) -> None:
    log = tmp_path / "linker"
    result = run(LOAD + MULTIPLY + REPORT, blas_dir, "stock", LD_DEBUG="bindings", LD_DEBUG_OUTPUT=str(log))
    report = json.loads(result.stdout)
    assert (report["kind"], report["warning"]) == (BlasKind.STOCK, None)
    [library] = bound_to("cblas_sgemm", log)
    assert "mlx" in library


def test_loading_after_mlx_is_refused(blas_dir: Path) -> None:
    result = run("import mlx.core" + LOAD, blas_dir, "auto", check=False)
    assert "BlasError: mlx.core was imported before the BLAS was loaded" in result.stderr


def test_a_process_keeps_its_choice(blas_dir: Path) -> None:
    again = "more = {'same': load_blas(Path(sys.argv[1])) is choice}" + REPORT
    assert json.loads(run(LOAD + again, blas_dir, "auto").stdout)["same"]
    changed = run(LOAD + "load_blas(Path(sys.argv[1]), mode='stock')", blas_dir, "auto", check=False)
    assert "cannot change to 'stock'" in changed.stderr


@pytest.mark.parametrize(("cpus", "threads"), [(1, 1), (2, 2), (3, 2), (8, 7)])
def test_a_processor_is_left_to_others_where_there_are_some(cpus: int, threads: int) -> None:
    assert default_threads(cpus) == threads


def test_the_number_of_threads_can_be_set(blas_dir: Path) -> None:
    script = LOAD.replace("mode=sys.argv[2]", "threads=3") + REPORT
    assert json.loads(run(script, blas_dir).stdout)["threads"] == 3


@pytest.mark.slow
def test_processes_that_prepare_at_once_share_one_whole_copy(tmp_path: Path) -> None:
    script = """
import ctypes, sys
from pathlib import Path
from inference.engine.openblas_wheel import openblas_from_wheel
ctypes.CDLL(str(openblas_from_wheel(Path(sys.argv[1])))).cblas_sgemm
"""
    processes = [subprocess.Popen([sys.executable, "-c", script, tmp_path], cwd=ROOT) for _ in range(3)]
    assert [process.wait(60) for process in processes] == [0, 0, 0]
    [copy] = tmp_path.iterdir()
    made = copy.stat().st_mtime_ns
    subprocess.run([sys.executable, "-c", script, tmp_path], cwd=ROOT, check=True)
    assert copy.stat().st_mtime_ns == made


def test_a_new_wheel_replaces_the_copy_of_the_old(tmp_path: Path) -> None:
    old = tmp_path / "libopenblas-0.0.1-0123456789abcdef.so"
    old.touch()
    run(LOAD, tmp_path, "auto")
    if list(tmp_path.iterdir()) == [old]:
        pytest.skip("the system's BLIS comes before the wheel")
    assert not old.exists()


def test_without_any_blas_the_remedy_is_named(tmp_path: Path) -> None:
    occupied = tmp_path / "blas"
    occupied.write_text("a file where the directory should be")
    report = json.loads(run(LOAD + REPORT, occupied, "auto").stdout)
    if report["kind"] == BlasKind.BLIS:
        pytest.skip("the system has BLIS")
    assert ["scipy-openblas32", BlasRejection.COPY_FAILED] in report["rejected"]
    if report["kind"] == BlasKind.STOCK:
        assert report["warning"] == REMEDY


def test_set_up_decides_without_giving_symbols_away(blas_dir: Path) -> None:
    script = LOAD.replace("load_blas(Path(sys.argv[1]), mode=sys.argv[2])", "prepare_blas(Path(sys.argv[1]))")
    script = script.replace("import load_blas", "import prepare_blas")
    report = json.loads(run(script + REPORT, blas_dir).stdout)
    assert report["kind"] in (BlasKind.BLIS, BlasKind.OPENBLAS)
    assert report["resolved"] == "None"
    assert prepare_blas(blas_dir, mode="stock").kind is BlasKind.STOCK


BLIS_SOURCE = """
long long bli_info_get_blas_int_type_size(void) {{ return {bits}; }}
long long bli_info_get_enable_threading(void) {{ return {threaded}; }}
char *bli_info_get_version_str(void) {{ return "9.9"; }}
{cblas}
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize(
    ("bits", "threaded", "cblas", "outcome"),
    [
        (32, 1, "void cblas_sgemm(void) {}", "taken"),
        (64, 1, "void cblas_sgemm(void) {}", BlasRejection.INTEGERS_OF_64_BITS),
        (32, 0, "void cblas_sgemm(void) {}", BlasRejection.SINGLE_THREADED),
        (32, 1, "", BlasRejection.SYMBOLS_MISSING),
    ],
)
def test_the_systems_blis_comes_first_if_it_fits(
    blas_dir: Path, tmp_path: Path, bits: int, threaded: int, cblas: str, outcome: str
) -> None:
    source = tmp_path / "blis.c"
    source.write_text(BLIS_SOURCE.format(bits=bits, threaded=threaded, cblas=cblas))
    library = tmp_path / "libblis.so.5"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source], check=True)
    script = LOAD.replace("mode=sys.argv[2]", "threads=2") + REPORT
    report = json.loads(run(script, blas_dir, LD_LIBRARY_PATH=str(tmp_path)).stdout)
    if outcome == "taken":
        assert (report["kind"], report["resolved"]) == (BlasKind.BLIS, str(library))
        assert report["text"] == "BLIS 9.9, 2 threads"
    else:
        assert ["libblis.so.5", outcome] in report["rejected"]
        assert report["path"] != str(library)
