"""A run is no run of a policy that the worker's counters contradict."""

from __future__ import annotations

from dataclasses import fields, replace

import pytest

from benchmarks.admission_policies import Policy
from benchmarks.counters import Counters

_NOTHING = Counters(**{field.name: 0.0 for field in fields(Counters)})
#: A prompt of 512 tokens in eight chunks of 0.4 s, beside 40 decode ticks of 0.2 s.
_RAN = replace(
    _NOTHING, prefill_ticks=8, prefill_tokens=512, prefill_seconds=3.2, decode_ticks=40, decode_seconds=8.0
)


@pytest.mark.parametrize(
    ("policy", "ran"),
    [
        (Policy(64, 4), _RAN),
        (Policy(64, 0), replace(_NOTHING, decode_ticks=40)),
        (Policy(64, target=2.0), replace(_RAN, interval=2)),
        (Policy(64, target=1.5), replace(_RAN, interval=4)),
    ],
)
def test_what_a_policy_does_is_taken_for_it(policy: Policy, ran: Counters) -> None:
    assert policy.contradiction(ran, 512) is None


@pytest.mark.parametrize(
    ("policy", "ran", "said"),
    [
        (Policy(64, 8), _RAN, "interval 8 asks for 56 decode ticks, and 40 ran"),
        (Policy(64, 4), replace(_RAN, prefill_tokens=256), "256 prompt tokens of 512"),
        (Policy(64, 0), _RAN, "8 prompt ticks ran beside streams"),
        (
            Policy(64, target=2.0),
            replace(_RAN, interval=5),
            "needs an interval of 2, and the worker went by 5",
        ),
        (
            Policy(64, target=1.5),
            replace(_RAN, interval=1),
            "needs an interval of 4, and the worker went by 1",
        ),
        (Policy(64, target=2.0), replace(_RAN, decode_ticks=0), "no decode ticks"),
    ],
)
def test_what_it_cannot_have_done_is_refused(policy: Policy, ran: Counters, said: str) -> None:
    assert said in (policy.contradiction(ran, 512) or "")
