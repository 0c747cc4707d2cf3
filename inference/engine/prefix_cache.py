"""Prefixes of token sequences that a model has run, kept so that they need not be run again.

Keys and values of a token depend on the tokens before it and on nothing else, so sequences that begin alike
share them. They are kept as a tree per namespace: a path from the root spells a sequence, and each node holds
the arrays of its own tokens only. A conversation adds one node a turn, and what begins alike is kept once.

Tokens are compared, never hashes of them. Namespaces share nothing but what is in ``PUBLISHED``.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass, field
from typing import Final

import mlx.core as mx

#: Readable from every namespace: prefixes that an operator published for all.
PUBLISHED: Final = "published"


@dataclass(frozen=True)
class KeyValues:
    """What a model's caches hold of some consecutive tokens of one sequence.

    ``by_token``: arrays of shape ``(1, heads, tokens, size)``, which may be cut between any two tokens.
    ``at_end``: what is good behind the last token only (sliding windows, recurrent states); empty if the model
    has no such caches.
    """

    by_token: tuple[mx.array, ...]
    at_end: tuple[mx.array, ...] = ()

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in (*self.by_token, *self.at_end))


@dataclass(frozen=True)
class Hit:
    """The longest known prefix of a prompt: its first ``length`` tokens."""

    length: int
    key_values: KeyValues


@dataclass
class PrefixCounters:
    """``lookups``, ``hits`` and ``hit_tokens`` count sequences that began to run; ``evictions`` count nodes."""

    lookups: int = 0
    hits: int = 0
    hit_tokens: int = 0
    evictions: int = 0


@dataclass(eq=False)
class _Node:
    namespace: str
    parent: _Node | None
    tokens: tuple[int, ...]
    by_token: tuple[mx.array, ...]
    #: None where no sequence has ended, so that the state there is not known.
    at_end: tuple[mx.array, ...] | None
    children: dict[int, _Node] = field(default_factory=dict)

    @property
    def nbytes(self) -> int:
        return KeyValues(self.by_token, self.at_end or ()).nbytes

    @property
    def cuttable(self) -> bool:
        """Whether a prefix may end within this node."""
        return self.at_end == ()


class PrefixCache:
    """A tree of prefixes for each namespace, with one byte budget for all; the least recently used goes first.

    Nothing in it is in use: who gets a hit copies what it goes on with. So all of it can be evicted at
    any time, and ``bytes`` are what that would free.
    """

    def __init__(self, byte_budget: int) -> None:
        """``byte_budget``: the most that ``bytes`` will be; 0 keeps nothing."""
        self.counters: Final = PrefixCounters()
        #: How often something was stored: who was looked up since the last time will not find more.
        self.stored = 0
        self._budget = byte_budget
        self._bytes = 0
        self._roots: dict[str, _Node] = {}
        # Least recently used first. Who touches a node touches its ancestors after it, so that of two nodes of
        # one path the deeper comes first: the first of all is a leaf.
        self._order: OrderedDict[_Node, None] = OrderedDict()

    @property
    def bytes(self) -> int:
        """Bytes of all arrays that are kept."""
        return self._bytes

    @property
    def cold_bytes(self) -> int:
        """Bytes that ``evict`` could free: all of them."""
        return self._bytes

    @property
    def byte_budget(self) -> int:
        return self._budget

    def set_budget(self, byte_budget: int, spare: Set[str] = frozenset()) -> None:
        """Change the budget, evicting what no longer fits, as ``evict`` does."""
        self._budget = byte_budget
        self.evict(self._bytes - byte_budget, spare)

    def lookup(self, namespace: str, prompt: Sequence[int], beyond: int = 0) -> Hit | None:
        """The longest known prefix of ``prompt`` in this namespace or among the published.

        It leaves out the last token at least, which has to be run for what comes after it. None if it has no more than
        ``beyond`` tokens.
        """
        tokens = tuple(prompt[:-1])
        # Both are touched, though one is used: a published prefix stays while anybody sends it.
        found = [self._find(name, tokens) for name in dict.fromkeys((namespace, PUBLISHED))]
        longest = max(found, key=_length)
        return _hit(longest) if _length(longest) > beyond else None

    def record(self, hit_tokens: int) -> None:
        """Count a sequence that begins to run, ``hit_tokens`` of which were found here."""
        self.counters.lookups += 1
        self.counters.hits += hit_tokens > 0
        self.counters.hit_tokens += hit_tokens

    def store(self, namespace: str, tokens: Sequence[int], read: Callable[[int], KeyValues | None]) -> bool:
        """Keep what was run of a sequence; whether it is kept now.

        ``tokens``: all that were run, and no others. ``read(start)``: what the caches hold of ``tokens[start:]``,
        in arrays of its own, or None if that cannot be kept; called at most once, for what is not kept yet.
        What the budget has no room for is not kept, and nothing is evicted for it. If it raises, it has kept nothing.
        """
        if not tokens:
            return False
        rest = tuple(tokens)
        root = self._roots.get(namespace) or _Node(namespace, None, (), (), None)
        path = _walk(root, rest)
        matched = sum(count for _, count in path)
        last, count = path[-1] if path else (root, 0)
        ends_within = count < len(last.tokens)
        if matched == len(rest) and (last.cuttable or not (ends_within or last.at_end is None)):
            self._touch(last)
            return True
        new = read(matched)
        if new is None or sum(node.nbytes for node, _ in path) + new.nbytes > self._budget:
            return False
        self._touch(last)
        # What the new node will hang on was just touched, and fits: it is not among those that go.
        self.evict(self._bytes + new.nbytes - self._budget)
        # All that may fail is done before anything hangs in the tree.
        mx.async_eval(new.by_token, new.at_end)  # type: ignore[no-untyped-call]
        if ends_within:
            last = self._split(last, count)
        self._roots[namespace] = root
        if matched < len(rest):
            last = self._attach(_Node(namespace, last, rest[matched:], new.by_token, new.at_end))
        else:
            last.at_end = new.at_end
        self._bytes += new.nbytes
        self.stored += 1
        self._touch(last)
        return True

    def evict(self, bytes_: int, spare: Set[str] = frozenset()) -> int:
        """Forget the least recently used until ``bytes_`` are free; how many were freed.

        ``spare``: the namespaces whose prefixes go last.
        """
        before = self._bytes
        if bytes_ <= 0:
            return 0
        for node in sorted(self._order, key=lambda node: node.namespace in spare):
            if before - self._bytes >= bytes_:
                break
            self._forget(node)
            self.counters.evictions += 1
        return before - self._bytes

    def retain(self, namespace: str, sequences: Iterable[Sequence[int]]) -> None:
        """Forget all of a namespace but what begins one of ``sequences``. Nothing else of it can be found any more."""
        root = self._roots.get(namespace)
        if root is None:
            return
        kept: set[_Node] = set()
        for tokens in sequences:
            for node, count in _walk(root, tuple(tokens)):
                if count == len(node.tokens):
                    kept.add(node)
                else:
                    upper = self._split(node, count)
                    self._touch(upper)
                    kept.add(upper)
        # In order: what hangs on a node comes before it.
        for node in [node for node in self._order if node.namespace == namespace and node not in kept]:
            self._forget(node)

    def _find(self, namespace: str, tokens: tuple[int, ...]) -> list[tuple[_Node, int]]:
        """The path of the longest known prefix, touched; empty if there is none."""
        root = self._roots.get(namespace)
        path = _walk(root, tokens) if root is not None else []
        while path and not _may_end(*path[-1]):
            path.pop()
        if path:
            self._touch(path[-1][0])
        return path

    def _touch(self, node: _Node) -> None:
        """Make a node and its ancestors the most recently used."""
        while node.parent is not None:
            self._order.move_to_end(node)
            node = node.parent

    def _attach(self, node: _Node) -> _Node:
        if node.parent is not None:
            node.parent.children[node.tokens[0]] = node
        self._order[node] = None
        return node

    def _split(self, node: _Node, count: int) -> _Node:
        """Cut a node in two; returns the upper one, of ``count`` tokens. The caller touches it."""
        length = len(node.tokens)
        # A copy of each half: a view of the whole would keep all of it when the other half is evicted.
        above = tuple(mx.contiguous(_slice(array, 0, count)) for array in node.by_token)
        below = tuple(mx.contiguous(_slice(array, count, length)) for array in node.by_token)
        mx.async_eval(above, below)  # type: ignore[no-untyped-call]
        upper = _Node(node.namespace, node.parent, node.tokens[:count], above, () if node.cuttable else None)
        self._attach(upper)
        node.parent, node.tokens, node.by_token = upper, node.tokens[count:], below
        upper.children[node.tokens[0]] = node
        return upper

    def _forget(self, leaf: _Node) -> None:
        del self._order[leaf]
        self._bytes -= leaf.nbytes
        if leaf.parent is not None:
            del leaf.parent.children[leaf.tokens[0]]
            if leaf.parent.parent is None and not leaf.parent.children:
                del self._roots[leaf.namespace]


def _walk(root: _Node, tokens: tuple[int, ...]) -> list[tuple[_Node, int]]:
    """The nodes that spell the beginning of ``tokens``, and how many of each one's tokens do."""
    path: list[tuple[_Node, int]] = []
    node: _Node | None = root
    position = 0
    while position < len(tokens) and (node := node.children.get(tokens[position]) if node else None):
        count = _common(node.tokens, tokens[position : position + len(node.tokens)])
        path.append((node, count))
        position += count
        if count < len(node.tokens):
            break
    return path


def _length(path: list[tuple[_Node, int]]) -> int:
    return sum(count for _, count in path)


def _hit(path: list[tuple[_Node, int]]) -> Hit:
    """What the nodes of a path hold, in one piece."""
    last, count = path[-1]
    whole = [node.by_token for node, _ in path[:-1]]
    pieces = [*whole, tuple(_slice(array, 0, count) for array in last.by_token)]
    by_token = tuple(mx.concatenate(list(parts), axis=2) for parts in zip(*pieces, strict=True))
    return Hit(_length(path), KeyValues(by_token, last.at_end or ()))


def _common(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """How many tokens two sequences have in common at their beginning."""
    if left == right:
        return len(left)
    pairs = zip(left, right, strict=False)
    return next(
        (index for index, (one, other) in enumerate(pairs) if one != other), min(len(left), len(right))
    )


def _may_end(node: _Node, count: int) -> bool:
    """Whether what is known after ``count`` of a node's tokens is enough to go on from."""
    return node.cuttable or (count == len(node.tokens) and node.at_end is not None)


def _slice(array: mx.array, start: int, stop: int) -> mx.array:
    return array[:, :, start:stop]
