"""The packages' files that the chat page runs: copied whole, once, and never half."""

from __future__ import annotations

from pathlib import Path

import pytest

from signalbox import vendored
from signalbox.configuration import ROOT
from signalbox.vendored import FILES, MissingPackagesError


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A ``node_modules`` as npm leaves it, with a line of content in each file."""
    made = tmp_path / "node_modules"
    for source in FILES.values():
        (made / source).parent.mkdir(parents=True, exist_ok=True)
        (made / source).write_text(f"// {source}\n")
    return made


@pytest.fixture
def destination(tmp_path: Path) -> Path:
    return tmp_path / "vendor"


def test_every_file_is_copied_under_its_own_name_its_licence_too(packages: Path, destination: Path) -> None:
    assert vendored.copy(packages, destination) == [destination / name for name in FILES]
    for name, source in FILES.items():
        assert (destination / name).read_text() == f"// {source}\n"
    scripts = {Path(name).stem for name in FILES if name.endswith(".js")}
    assert {Path(name).stem for name in FILES if name.startswith("licences/")} == scripts


def test_only_what_changed_is_written_again(packages: Path, destination: Path) -> None:
    vendored.copy(packages, destination)
    assert vendored.copy(packages, destination) == []
    (packages / FILES["marked.js"]).write_text("// a newer one\n")
    (destination / "dompurify.js").write_text("// damaged")
    written = vendored.copy(packages, destination)
    assert written == [destination / "marked.js", destination / "dompurify.js"]
    assert (destination / "dompurify.js").read_text() == f"// {FILES['dompurify.js']}\n"


def test_no_draft_is_left_beside_the_files(packages: Path, destination: Path) -> None:
    vendored.copy(packages, destination)
    found = {path.relative_to(destination).as_posix() for path in destination.rglob("*") if path.is_file()}
    assert found == set(FILES)


def test_references_to_maps_that_are_not_copied_are_taken_out(packages: Path, destination: Path) -> None:
    script = packages / FILES["marked.js"]
    script.write_text("export const a = 1;\n//# sourceMappingURL=marked.esm.js.map\n")
    vendored.copy(packages, destination)
    assert (destination / "marked.js").read_text() == "export const a = 1;\n"


def test_a_missing_package_is_named_with_what_to_do(packages: Path, destination: Path) -> None:
    missing = packages / FILES["dompurify.js"]
    missing.unlink()
    with pytest.raises(MissingPackagesError) as error:
        vendored.copy(packages, destination)
    assert str(missing) in str(error.value)
    assert "npm ci" in str(error.value)


def test_the_pages_templates_and_modules_load_nothing_that_is_not_copied() -> None:
    places = [*(ROOT / "templates").rglob("*.html"), *(ROOT / "platform/signalbox/static").rglob("*.js")]
    text = "\n".join(path.read_text(encoding="utf-8") for path in places)
    named = {name for name in FILES if name.endswith(".js") and f"vendor/{name}" in text}
    assert named == {name for name in FILES if name.endswith(".js")}
    assert text.count("vendor/") == sum(text.count(f"vendor/{name}") for name in named)
