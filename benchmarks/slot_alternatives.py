"""What one slot in turns yields beside its alternatives, from what their forward passes cost on this machine.

    python -m benchmarks.slot_alternatives

Times the passes that each form is made of, interleaved, on rows of ``--context`` tokens: one token of ``n`` rows, a
block of one drafted row, a block of ``n`` drafted rows, and taking a row into the batch and out of it. From these and
the tokens that a round yields it reckons tokens a second of ``n`` streams that could all speculate:

- *none*: all decode in the batch;
- *turns, waiting*: one speculates, the parked ones decode nothing (as shipped);
- *turns, decoding*: one speculates, and after each of its slices the parked ones decode one token; at each turn one
  joins the batch and one leaves it;
- *all at once*: every row drafts, and one pass verifies all (ragged blocks, padding and lost turns left out: at best).

The yields (``--yields``) are tokens a round, as ``speculation_gain`` and ``drafter_replay`` report them. Refuses on a
busy machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from copy import copy
from typing import Any

from benchmarks.arguments import parser as arguments_parser
from benchmarks.trust import refuse_when_busy, spread

#: As shipped: slices of one grant.
_GRANT_ROUNDS = 8
_TOKEN = 17


def main() -> None:
    parser = arguments_parser(__doc__)
    parser.add_argument("--streams", type=int, nargs="+", default=[2, 3, 4])
    parser.add_argument("--context", type=int, default=256, help="tokens that every row holds")
    parser.add_argument("--draft-tokens", type=int, default=4)
    parser.add_argument(
        "--yields", type=float, nargs="+", default=[1.3, 1.6, 2.5, 4.0], help="tokens a round"
    )
    parser.add_argument("--repeats", type=int, default=15)
    arguments = parser.parse_args()
    refuse_when_busy()

    from inference.engine.blas import load_blas

    blas = load_blas(arguments.state / "blas")
    from inference.engine.model_loading import load_prepared

    model, _ = load_prepared(arguments.state / "models" / arguments.model)
    rows = sorted({1, *arguments.streams, *(n - 1 for n in arguments.streams)})
    block = arguments.draft_tokens + 1
    passes = _Passes(model, arguments.context)
    timed: dict[str, Callable[[], float]] = {f"{n}x1": passes.forward(n, 1) for n in rows}
    timed |= {f"{n}x{block}": passes.forward(n, block) for n in rows}
    timed |= {f"move {n}": passes.move(n) for n in rows}
    for action in timed.values():
        action()
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    for _ in range(arguments.repeats):
        for name, action in timed.items():
            seconds[name].append(action())
    cost = {name: statistics.median(values) for name, values in seconds.items()}

    print(f"BLAS: {blas.name}; {arguments.repeats} repeats; rows of {arguments.context} tokens\n")
    print("| rows | one token, ms | a block of each, ms | one row joins and one leaves, ms |")
    print("| --- | --- | --- | --- |")
    for n in rows:
        figures = (f"{n}x1", f"{n}x{block}", f"move {n}")
        print(f"| {n} | {' | '.join(spread([1000 * one for one in seconds[name]], 0) for name in figures)} |")
    print("\n| streams | tokens a round | none | turns, waiting | turns, decoding | all at once |")
    print("| --- | --- | --- | --- | --- | --- |")
    for n in arguments.streams:
        for tokens in arguments.yields:
            slice_s, beside_s = cost[f"1x{block}"], cost[f"{n - 1}x1"]
            decoding_s = slice_s + beside_s + cost[f"move {n - 1}"] / _GRANT_ROUNDS
            forms = (
                n / cost[f"{n}x1"],
                tokens / slice_s,
                (tokens + n - 1) / decoding_s,
                n * tokens / cost[f"{n}x{block}"],
            )
            print(f"| {n} | {tokens:g} | {' | '.join(f'{rate:.1f}' for rate in forms)} |")


class _Passes:
    """What the forms are made of, on rows that stay as long as they were. Each tells the seconds that it took."""

    def __init__(self, model: Any, context: int) -> None:
        self._model = model
        self._context = context

    def forward(self, rows: int, width: int) -> Callable[[], float]:
        """A pass of ``width`` tokens of each of so many rows, which are cut off again."""
        import mlx.core as mx

        caches = self._filled(rows)

        def run() -> float:
            began = time.perf_counter()
            mx.eval(self._model(mx.full((rows, width), _TOKEN, dtype=mx.uint32), cache=caches))
            took = time.perf_counter() - began
            for cache in caches:
                cache.trim(width)
            return took

        return run

    def move(self, rows: int) -> Callable[[], float]:
        """One row taken out of a batch of so many, and another one put in."""
        import mlx.core as mx

        filled, joining = self._filled(rows), self._filled(1)

        def run() -> float:
            # Both make new arrays and leave the old ones alone, so that copies of the caches may share them.
            batch, alone = [copy(cache) for cache in filled], [copy(cache) for cache in joining]
            began = time.perf_counter()
            for cache, other in zip(batch, alone, strict=True):
                cache.extend(other)
                cache.filter(mx.array(list(range(1, rows + 1))))
            mx.eval([cache.state for cache in batch])
            return time.perf_counter() - began

        return run

    def _filled(self, rows: int) -> list[Any]:
        import mlx.core as mx
        from mlx_lm.models.cache import BatchKVCache

        caches = [BatchKVCache([0] * rows) for _ in self._model.layers]
        mx.eval(self._model(mx.full((rows, self._context), _TOKEN, dtype=mx.uint32), cache=caches))
        mx.eval([cache.state for cache in caches])
        return caches


if __name__ == "__main__":
    main()
