"""Merkle trees over a batch of records: one root to chain, a short proof for each record. Pure.

The tree is RFC 6962's (section 2.1): leaves and inner nodes are hashed with different first bytes, so that no inner
node can be passed off as a leaf; of ``n`` leaves the left subtree has the largest power of two below ``n``. A proof is
checked as in RFC 9162, section 2.1.3.2. Hashes are 64 hexadecimal digits.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

_LEAF, _NODE = b"\x00", b"\x01"


def leaf_hash(record: bytes) -> str:
    """The leaf of ``record``."""
    return hashlib.sha256(_LEAF + record).hexdigest()


def root(leaves: Sequence[str]) -> str:
    """The root over ``leaves``, in their order. Raises ``ValueError`` when there are none."""
    return _levels(leaves)[-1][0].hex()


def proof(leaves: Sequence[str], index: int) -> list[str]:
    """The hashes that lead from the leaf at ``index`` to the root, from the bottom. Raises ``IndexError``."""
    if not 0 <= index < len(leaves):
        raise IndexError(f"no leaf {index} among {len(leaves)}")
    return proofs(leaves)[index]


def proofs(leaves: Sequence[str]) -> list[list[str]]:
    """The proof of every leaf, in their order: the tree is hashed once for all of them."""
    levels = _levels(leaves)
    found: list[list[str]] = []
    for index in range(len(leaves)):
        path: list[str] = []
        position = index
        for level in levels[:-1]:
            sibling = position ^ 1
            if sibling < len(level):
                path.append(level[sibling].hex())
            position >>= 1
        found.append(path)
    return found


def root_by_proof(leaf: str, index: int, size: int, path: Sequence[str]) -> str | None:
    """The root that ``path`` leads to from ``leaf``, number ``index`` of ``size``; None where it fits no tree."""
    if not 0 <= index < size:
        return None
    position, last = index, size - 1
    found = bytes.fromhex(leaf)
    for sibling in map(bytes.fromhex, path):
        if last == 0:
            return None
        if position & 1 or position == last:
            found = _node(sibling, found)
            while not position & 1 and position:
                position, last = position >> 1, last >> 1
        else:
            found = _node(found, sibling)
        position, last = position >> 1, last >> 1
    return found.hex() if last == 0 else None


def _levels(leaves: Sequence[str]) -> list[list[bytes]]:
    """The tree from its leaves up. A node without a sibling moves up as it is, which makes it RFC 6962's tree."""
    if not leaves:
        raise ValueError("a batch without records has no root")
    level = [bytes.fromhex(leaf) for leaf in leaves]
    levels = [level]
    while len(level) > 1:
        above = [_node(level[at], level[at + 1]) for at in range(0, len(level) - 1, 2)]
        if len(level) % 2:
            above.append(level[-1])
        levels.append(above)
        level = above
    return levels


def _node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(_NODE + left + right).digest()
