"""A hub id is pinned to a commit, downloaded without code, and gone on with after a failure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from inference.engine.preparation import PreparationError, PreparedModel, Problem, prepare
from inference.engine.preparation.hub import HubSource
from tests.inference.engine.preparation.hub_server import COMMIT, Hub, hub


@pytest.fixture
def served(own_checkpoint: Path) -> Iterator[Hub]:
    with hub(own_checkpoint) as server:
        yield server


def prepare_from(served: Hub, models: Path, revision: str = "") -> PreparedModel:
    source = HubSource(f"{served.repository}{revision}", models / ".downloads", endpoint=served.endpoint)
    return prepare(source, models, served.repository, precision="native")


def test_a_hub_id_is_pinned_to_the_commit_it_names_now(served: Hub, models: Path) -> None:
    record = prepare_from(served, models).record
    assert record.source == f"team/tiny@{COMMIT}"
    assert record.source_checksum == COMMIT
    assert sorted(path.name for path in models.iterdir()) == [".downloads", ".team--tiny.lock", "team--tiny"]
    assert list((models / ".downloads").iterdir()) == []

    downloads = len(served.requests)
    assert prepare_from(served, models).record == record
    served.refusal = "RepoNotFound"  # a commit needs no hub to be known again
    assert prepare_from(served, models, f"@{COMMIT}").record == record
    assert len(served.requests) == downloads


def test_only_data_is_downloaded(served: Hub, models: Path) -> None:
    for name in ("modeling_tiny.py", "pytorch_model.bin", "README.md", "training_args.bin"):
        (served.directory / name).write_text("x")
    prepare_from(served, models)
    assert set(served.requests) == {
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    }


def test_a_download_goes_on_where_it_stopped(served: Hub, models: Path) -> None:
    served.failing = {"tokenizer.json"}
    with pytest.raises(PreparationError, match="could not be reached for team/tiny") as refusal:
        prepare_from(served, models)
    assert refusal.value.problem is Problem.UNREACHABLE
    assert "\n" not in str(refusal.value)
    assert not (models / "team--tiny").exists()
    served.failing = set()
    prepare_from(served, models)
    assert served.requests.count("model.safetensors") == 1


def test_a_file_that_arrives_damaged_is_refused_and_downloaded_anew(served: Hub, models: Path) -> None:
    served.announced = {"model.safetensors": "0" * 64}
    with pytest.raises(PreparationError, match=r"model\.safetensors of team/tiny arrived damaged") as refusal:
        prepare_from(served, models)
    assert refusal.value.problem is Problem.CORRUPT
    served.announced = {}
    prepare_from(served, models)
    assert served.requests.count("model.safetensors") == 2


@pytest.mark.parametrize(
    ("code", "problem", "words"),
    [
        ("RepoNotFound", Problem.NOT_FOUND, "The hub knows no model team/tiny"),
        ("RevisionNotFound", Problem.NOT_FOUND, "has no revision v9"),
        ("GatedRepo", Problem.UNREACHABLE, "asks for consent"),
    ],
)
def test_the_hubs_refusals_are_one_line(
    served: Hub, models: Path, code: str, problem: Problem, words: str
) -> None:
    served.refusal = code
    with pytest.raises(PreparationError, match=words) as refusal:
        prepare_from(served, models, "@v9")
    assert refusal.value.problem is problem
    assert "\n" not in str(refusal.value)


def test_pickled_weights_are_refused_before_they_are_downloaded(served: Hub, models: Path) -> None:
    (served.directory / "model.safetensors").rename(served.directory / "pytorch_model.bin")
    with pytest.raises(PreparationError, match="only in a format that can run code") as refusal:
        prepare_from(served, models)
    assert refusal.value.problem is Problem.UNSAFE_WEIGHTS
    assert served.requests == []


def test_without_a_hub_the_error_says_so(models: Path) -> None:
    source = HubSource("team/tiny", models / ".downloads", endpoint="http://127.0.0.1:9")
    with pytest.raises(PreparationError, match="could not be reached for team/tiny") as refusal:
        prepare(source, models, "team/tiny", precision="native")
    assert refusal.value.problem is Problem.UNREACHABLE
