from __future__ import annotations

import logging
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from inference.engine.drafting import pool_files
from inference.engine.drafting.guess import Guess
from inference.engine.drafting.pool_files import PoolContent, PoolFileError
from inference.engine.drafting.pool_store import PoolOwner, PoolStore
from inference.engine.drafting.suffix_pool import SuffixPool, pack

OWNER = PoolOwner("owner/tiny", "0" * 64, "vocabulary")


def store(directory: Path, owner: PoolOwner = OWNER) -> PoolStore:
    return PoolStore(directory, owner)


def taught(directory: Path, *tokens: int, namespace: str = "mine") -> PoolStore:
    pools = store(directory)
    pools.learn(namespace, tokens)
    return pools


def path_of(directory: Path, namespace: str = "mine") -> Path:
    return pool_files.tenant_path(directory, OWNER.model, namespace)


def test_what_was_learnt_outlives_the_worker(tmp_path: Path) -> None:
    pools = taught(tmp_path, 1, 2, 3)
    assert not path_of(tmp_path).exists(), "the engine's thread writes no file"
    pools.synchronise()
    again = store(tmp_path).of("mine")
    assert again.texts == (pack([1, 2, 3]),)
    assert again.guess((1, 2)) == Guess(3, 1.0)
    assert store(tmp_path).of("another").texts == ()


def test_only_the_owner_may_read_it_and_nothing_else_is_left(tmp_path: Path) -> None:
    taught(tmp_path / "pools", 1, 2).synchronise()
    path = path_of(tmp_path / "pools")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "pools").stat().st_mode) == 0o700
    assert [file.name for file in path.parent.iterdir()] == ["mine.pool"]


def test_what_has_not_changed_is_not_written_again(tmp_path: Path) -> None:
    pools = taught(tmp_path, 1, 2)
    pools.synchronise()
    path_of(tmp_path).unlink()
    pools.of("mine")
    pools.learn("mine", [1, 2])
    pools.synchronise()
    assert not path_of(tmp_path).exists()


@pytest.mark.parametrize("damage", ["cut", "changed", "empty", "other vocabulary", "other format"])
def test_a_file_that_cannot_be_used_is_ignored_with_one_line_and_replaced(
    tmp_path: Path, damage: str, caplog: pytest.LogCaptureFixture
) -> None:
    taught(tmp_path, 1, 2, 3).synchronise()
    path = path_of(tmp_path)
    content = path.read_bytes()
    owner = OWNER
    if damage == "cut":
        path.write_bytes(content[:-3])
    elif damage == "changed":
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    elif damage == "empty":
        path.write_bytes(b"")
    elif damage == "other format":
        path.write_bytes(b"signalbox pool 2\n" + content)
    else:
        owner = PoolOwner(OWNER.model, "1" * 64, "other tokens")
    pools = store(tmp_path, owner)
    with caplog.at_level(logging.WARNING):
        assert pools.of("mine").texts == ()
        assert pools.of("mine").texts == ()
    assert len(caplog.records) == 1
    assert str(path) in caplog.text
    pools.learn("mine", [4, 5])
    pools.synchronise()
    assert store(tmp_path, owner).of("mine").texts == (pack([4, 5]),)


def test_what_cannot_be_saved_is_saved_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pools = taught(tmp_path, 1, 2)
    in_the_way = path_of(tmp_path).parent
    in_the_way.parent.mkdir(parents=True)
    in_the_way.write_text("a file where a directory belongs")
    pools.synchronise()
    assert "will be tried again" in caplog.text
    in_the_way.unlink()
    pools.synchronise()
    assert path_of(tmp_path).exists()


def test_a_directory_that_cannot_be_used_stops_no_worker(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    in_the_way = tmp_path / "pools"
    pools = taught(in_the_way, 1, 2)
    in_the_way.write_text("a file where a directory belongs")
    pools.synchronise()
    assert len(caplog.records) == 1
    in_the_way.unlink()
    pools.synchronise()
    assert path_of(in_the_way).exists()


def test_what_is_learnt_while_it_is_being_forgotten_is_not_written_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taught(tmp_path, 1, 2).synchronise()
    pools = taught(tmp_path, 3, 4, namespace="another")

    @contextmanager
    def locked_after_a_forget(pools_dir: Path) -> Iterator[None]:
        monkeypatch.undo()
        pools.learn("mine", [5, 6])
        pool_files.forget(pools_dir, "mine")
        with pool_files.locked(pools_dir):
            yield

    monkeypatch.setattr(pool_files, "locked", locked_after_a_forget)
    pools.synchronise()
    assert not path_of(tmp_path).exists()
    assert pools.of("mine").texts == ()
    assert path_of(tmp_path, "another").exists()


def test_a_forgotten_tenant_is_forgotten_by_the_worker_that_has_its_pool(tmp_path: Path) -> None:
    pools = taught(tmp_path, 1, 2)
    pools.learn("another", [3, 4])
    pools.synchronise()
    pools.learn("mine", [5, 6])
    assert [file.namespace for file in pool_files.forget(tmp_path, "mine")] == ["mine"]
    pools.synchronise()
    assert not path_of(tmp_path).exists()
    assert pools.of("mine").texts == ()
    assert pools.of("another").texts == (pack([3, 4]),)
    # And it may learn again.
    pools.learn("mine", [7, 8])
    pools.synchronise()
    assert store(tmp_path).of("mine").texts == (pack([7, 8]),)


def test_what_was_never_saved_is_forgotten_too(tmp_path: Path) -> None:
    pools = taught(tmp_path, 1, 2)
    assert pool_files.forget(tmp_path, "mine") == []
    pools.synchronise()
    assert pools.of("mine").texts == ()
    assert not path_of(tmp_path).exists()


def test_memory_is_bounded_and_nothing_unsaved_is_lost_for_it(tmp_path: Path) -> None:
    pools = store(tmp_path)
    for number in range(40):
        pools.learn(str(number), [number, number + 1])
    pools.synchronise()
    pools.of("one-more")
    filled = pools.memory_bytes
    assert filled < SuffixPool([pack([1, 2])]).memory_bytes * 33
    assert [pools.of(str(number)).texts for number in range(40)] == [
        (pack([number, number + 1]),) for number in range(40)
    ]


def test_files_are_listed_by_model_and_tenant(tmp_path: Path) -> None:
    taught(tmp_path, 1, 2).synchronise()
    taught(tmp_path, 1, 2, namespace="another").synchronise()
    pool_files.forget(tmp_path, "nobody")
    assert [(file.model, file.namespace) for file in pool_files.tenant_files(tmp_path)] == [
        ("owner/tiny", "another"),
        ("owner/tiny", "mine"),
    ]


@pytest.mark.parametrize("namespace", ["../neutral", "", "a/b", ".forgotten", "x" * 65])
def test_no_namespace_leads_out_of_its_directory(tmp_path: Path, namespace: str) -> None:
    with pytest.raises(ValueError, match="cannot name a tenant's pool"):
        store(tmp_path).of(namespace)
    with pytest.raises(ValueError, match="cannot name a tenant's pool"):
        pool_files.forget(tmp_path, namespace)


def test_a_file_that_holds_no_tokens_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "odd.pool"
    pool_files.write(path, PoolContent(vocabulary="v", model="m", model_checksum="c", texts=(b"12345",)))
    with pytest.raises(PoolFileError, match="no token ids"):
        pool_files.read(path)
