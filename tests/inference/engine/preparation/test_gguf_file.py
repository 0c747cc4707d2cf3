"""A GGUF file comes from a stranger: whatever it holds, reading it ends with an answer or a refusal."""

from __future__ import annotations

import contextlib
from pathlib import Path

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from inference.engine.preparation import PreparationError, Problem
from inference.engine.preparation.gguf_file import read_gguf
from tests.inference.engine.preparation.tiny_gguf import write_gguf

FUZZ = settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="session")
def whole(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_gguf(checkpoint, tmp_path_factory.mktemp("gguf") / "tiny.gguf").read_bytes()


def test_metadata_and_tensors_are_those_of_the_reference_reader(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(whole)
    ours, reference = read_gguf(path), gguf.GGUFReader(path)
    expected = {
        name: field.contents() for name, field in reference.fields.items() if not name.startswith("GGUF.")
    }
    assert ours.metadata == expected
    assert list(ours.tensors) == [tensor.name for tensor in reference.tensors]
    for tensor in reference.tensors:
        mine = ours.tensors[tensor.name]
        assert (mine.type, mine.shape) == (tensor.tensor_type, tuple(tensor.shape[::-1]))
        assert (ours.raw(mine).ravel() == tensor.data.view(np.uint8).ravel()).all()


@FUZZ
@given(st.data())
def test_a_file_that_is_cut_short_is_refused(whole: bytes, tmp_path: Path, data: st.DataObject) -> None:
    kept = data.draw(st.integers(0, len(whole) - 1) | st.integers(0, 2000))
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[:kept])
    if kept >= len(whole) - 31 and not any(whole[kept:]):
        return  # only the padding behind the last tensor is gone
    with pytest.raises(PreparationError) as refusal:
        read_gguf(path)
    assert refusal.value.problem is Problem.TRUNCATED


@FUZZ
@given(changes=st.lists(st.tuples(st.integers(4, 400), st.integers(0, 255)), min_size=1, max_size=4))
@example(changes=[(8, 255), (15, 255)])  # more tensors than atoms
@example(changes=[(16, 255), (23, 127)])  # more values than that
@example(changes=[(31, 127)])  # a key as long as the disk
def test_a_damaged_head_is_read_or_refused_and_never_more(
    whole: bytes, tmp_path: Path, changes: list[tuple[int, int]]
) -> None:
    damaged = bytearray(whole)
    for place, value in changes:
        damaged[place] = value
    path = tmp_path / "damaged.gguf"
    path.write_bytes(damaged)
    with contextlib.suppress(PreparationError):
        read_gguf(path)


def test_another_kind_of_file_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04" + bytes(100))
    with pytest.raises(PreparationError, match="is not a GGUF file"):
        read_gguf(path)


def test_an_old_version_is_named(whole: bytes, tmp_path: Path) -> None:
    path = tmp_path / "old.gguf"
    path.write_bytes(whole[:4] + (1).to_bytes(4, "little") + whole[8:])
    with pytest.raises(PreparationError, match="has GGUF version 1; versions 2 and 3"):
        read_gguf(path)
