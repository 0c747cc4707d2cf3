"""Trees over batches: RFC 6962's, by its own recursive definition and its published hashes; no wrong proof passes."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accounts.audit.merkle import leaf_hash, proof, proofs, root, root_by_proof

#: Leaves and roots that implementations of RFC 6962 are tested with (Certificate Transparency's own tests).
_RECORDS = [
    bytes.fromhex(text)
    for text in (
        "",
        "00",
        "10",
        "2021",
        "3031",
        "40414243",
        "5051525354555657",
        "606162636465666768696a6b6c6d6e6f",
    )
]
_ROOTS = [
    "6e340b9cffb37a989ca544e6bb780a2c78901d3fb33738768511a30617afa01d",
    "fac54203e7cc696cf0dfcb42c92a1d9dbaf70ad9e621f4bd8d98662f00e3c125",
    "aeb6bcfe274b70a14fb067a5e5578264db0fa9b51af5e0ba159158f329e06e77",
    "d37ee418976dd95753c1c73862b9398fa2a2cf9b4ff0fdfe8b30cd95209614b7",
    "4e3bbb1f7b478dcfe71fb631631519a3bca12c9aefca1612bfce4c13a86264d4",
    "76e67dadbcdf1e10e1b74ddc608abd2f98dfb16fbce75277b5232a127f2087ef",
    "ddb89be403809e325750d3d263cd78929c2942b7942a34b77e122c9594a74c8c",
    "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328",
]
_SIZES = range(1, 71)


def _leaves(size: int) -> list[str]:
    return [leaf_hash(f"record {number}".encode()) for number in range(size)]


def _split(size: int) -> int:
    """The largest power of two below ``size``: how many leaves the left subtree has."""
    return 1 << (size - 1).bit_length() - 1


def _by_definition(records: Sequence[bytes]) -> bytes:
    """MTH of RFC 6962, section 2.1, word for word."""
    if len(records) == 1:
        return hashlib.sha256(b"\x00" + records[0]).digest()
    k = _split(len(records))
    return hashlib.sha256(b"\x01" + _by_definition(records[:k]) + _by_definition(records[k:])).digest()


def _path_by_definition(index: int, records: Sequence[bytes]) -> list[bytes]:
    """PATH of RFC 6962, section 2.1.1, word for word."""
    if len(records) == 1:
        return []
    k = _split(len(records))
    if index < k:
        return [*_path_by_definition(index, records[:k]), _by_definition(records[k:])]
    return [*_path_by_definition(index - k, records[k:]), _by_definition(records[:k])]


@pytest.mark.parametrize("size", range(1, 9))
def test_roots_are_the_published_ones(size: int) -> None:
    assert root([leaf_hash(record) for record in _RECORDS[:size]]) == _ROOTS[size - 1]


@pytest.mark.parametrize("size", _SIZES)
def test_roots_and_paths_are_those_of_the_definition(size: int) -> None:
    records = [f"record {number}".encode() for number in range(size)]
    leaves = _leaves(size)
    assert root(leaves) == _by_definition(records).hex()
    found = proofs(leaves)
    assert found == [[step.hex() for step in _path_by_definition(at, records)] for at in range(size)]
    assert [proof(leaves, at) for at in range(size)] == found


@pytest.mark.parametrize("size", _SIZES)
def test_every_leaf_is_proved_and_at_no_other_place(size: int) -> None:
    leaves = _leaves(size)
    expected = root(leaves)
    for index, path in enumerate(proofs(leaves)):
        assert root_by_proof(leaves[index], index, size, path) == expected
        assert len(path) <= (size - 1).bit_length()
        for other in range(size):
            if other != index:
                assert root_by_proof(leaves[index], other, size, path) != expected
                assert root_by_proof(leaves[other], index, size, path) != expected


@given(st.integers(1, 300), st.data())
def test_no_proof_that_was_changed_passes(size: int, data: st.DataObject) -> None:
    leaves = _leaves(size)
    index = data.draw(st.integers(0, size - 1))
    path = proof(leaves, index)
    wrong = data.draw(
        st.lists(st.sampled_from([*leaves, *path, "ff" * 32]), max_size=len(path) + 2).filter(
            lambda drawn: drawn != path
        )
    )
    assert root_by_proof(leaves[index], index, size, wrong) != root(leaves)
    outside = data.draw(st.integers(-3, -1) | st.integers(size, size + 3))
    assert root_by_proof(leaves[index], outside, size, path) is None
    foreign = leaf_hash(b"never recorded")
    assert root_by_proof(foreign, index, size, path) != root(leaves)


@given(st.integers(2, 64), st.data())
def test_no_inner_node_passes_for_a_record(size: int, data: st.DataObject) -> None:
    """The second preimage that a tree without different first bytes would have: a shorter path from a node."""
    leaves = _leaves(size)
    index = data.draw(st.integers(0, size - 1).filter(lambda at: at ^ 1 < size))
    path = proof(leaves, index)
    left, right = (leaves[index], path[0]) if index % 2 == 0 else (path[0], leaves[index])
    record = bytes.fromhex(left) + bytes.fromhex(right)
    assert root_by_proof(leaf_hash(record), index // 2, (size + 1) // 2, path[1:]) != root(leaves)


def test_a_path_of_another_tree_s_size_fits_none() -> None:
    leaves = _leaves(8)
    path = proof(leaves, 5)
    assert root_by_proof(leaves[5], 5, 6, path) != root(leaves)
    assert root_by_proof(leaves[5], 5, 64, path) is None
    assert root_by_proof(leaves[5], 5, 8, path[:-1]) is None
    assert root_by_proof(leaves[5], 5, 8, [*path, path[0]]) is None


def test_a_path_alone_does_not_tell_a_tree_of_three_from_one_of_four() -> None:
    """RFC 6962 has it so: the size is part of what is proved to, which is why the chained event has the count."""
    leaves = _leaves(3)
    path = proof(leaves, 0)
    assert root_by_proof(leaves[0], 0, 4, path) == root(leaves)


def test_a_batch_has_records() -> None:
    with pytest.raises(ValueError, match="no root"):
        root([])
    for index in (-1, 2):
        with pytest.raises(IndexError, match="among 2"):
            proof(_leaves(2), index)
