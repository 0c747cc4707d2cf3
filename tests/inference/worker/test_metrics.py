"""Every series that a worker may tell is explained to whoever operates it, and each mechanism is told by lane."""

from __future__ import annotations

import re

import pytest

from inference.messages import CancelReason, EndState
from inference.models import LanguageModel
from inference.scheduling.speculation import DeclineReason
from inference.scheduling.tick import Action
from inference.worker.metrics import ClaimKind, Fault, Stage, WorkerMetrics
from inference.worker.requests import Cancel
from signalbox.configuration import ROOT
from tests.inference.doors import entitled_principal
from tests.inference.worker.conftest import PROMPT, HandDrivenWorker, submit

#: What ``scheduling.md`` wants seen by lane, mechanism by mechanism.
BY_LANE = {
    "prefill chunks": {"prefill_chunks_total", "prefill_padded_tokens_total", "prefill_held_total"},
    "grants": {"prefill_grants_total"},
    "debt": {"prefill_debt_made_tokens_total"},
    "queue wait": {"queue_wait_seconds"},
    "claims": {"claims_total"},
    "slot grants": {"slot_grants_total"},
    "rounds": {"speculative_rounds_total"},
    "proposed and accepted tokens": {
        "draft_tokens_proposed_total",
        "draft_tokens_accepted_total",
        "draft_tokens_rejected_total",
    },
    "rotations": {"slot_rotations_total"},
    "parks": {"slot_parks_total"},
    "declines by reason": {"slot_declines_total"},
    "preemptions": {"preemptions_total"},
    "deferrals": {"deferrals_total"},
    "cancellations by stage": {"cancellations_total"},
    "TTFT": {"time_to_first_token_seconds"},
    "ITL": {"inter_token_seconds"},
    "tokens": {"prompt_tokens_total", "cached_tokens_total", "generated_tokens_total"},
}


@pytest.fixture(scope="module")
def told() -> dict[str, set[str]]:
    """The labels of every series that a worker may tell, as ``/metrics`` shows them."""
    metrics = WorkerMetrics()
    metrics.lane("normal")
    metrics.prefill("normal")
    metrics.claims(ClaimKind.FRESH, "normal")
    metrics.faults(Fault.BACKEND)
    metrics.cancellations(Stage.CLAIMED, CancelReason.DETACHED, "normal")
    metrics.generations(EndState.COMPLETED, "normal")
    metrics.deferrals(0)
    metrics.preemptions("low")
    metrics.slot("normal")
    metrics.declines(DeclineReason.DOES_NOT_PAY, "normal")
    return {
        re.sub(r"_(bucket|sum|count)$", "", name.partition("{")[0]): {
            "lane" if label == "lane_rank" else label for label in re.findall(r"(\w+)=", name)
        }
        - {"le"}
        for name in metrics.counters.snapshot()
    }


def names_of(labels: str) -> set[str]:
    """Of labels as a table shows them, some with the value that is meant."""
    return set(re.findall(r'(\w+)(?:="\w*")?(?:,|$)', labels))


@pytest.fixture(scope="module")
def explained() -> dict[str, set[str]]:
    """The labels of each series in the operator's table. Those that stand alone are of all before them."""
    found: dict[str, set[str]] = {}
    for line in (ROOT / "docs" / "operations.md").read_text().splitlines():
        bare: list[str] = []
        for name, labels in re.findall(r"`(\w*)(?:\{([^`]*)\})?`", line.split("|")[1] if "|" in line else ""):
            if name:
                found[name] = names_of(labels)
                bare += [] if labels else [name]
            else:
                found |= {one: names_of(labels) for one in bare}
                bare = []
    return found


def test_every_series_is_in_the_operators_table_with_its_labels(
    told: dict[str, set[str]], explained: dict[str, set[str]]
) -> None:
    assert {name: explained.get(name) for name in told} == told


@pytest.mark.parametrize("mechanism", BY_LANE)
def test_every_mechanism_is_told_by_lane(mechanism: str, told: dict[str, set[str]]) -> None:
    assert all("lane" in told[name] for name in BY_LANE[mechanism])


def test_ticks_are_told_by_action() -> None:
    """Not by lane: a decode tick is that of every row. Prompt ticks and rounds are, under names of their own."""
    series = WorkerMetrics().counters.snapshot()
    assert {f'ticks_total{{action="{action.value}"}}' for action in Action} <= series.keys()


def test_what_is_done_for_a_lane_is_counted_as_its_own(
    worker: HandDrivenWorker, model: LanguageModel
) -> None:
    stream = submit(model, max_tokens=100)
    worker.claim()
    worker.turn_until(lambda: worker.loop.roster.decoding_rows == 1)
    low = submit(model, by=entitled_principal("low"), requested_lane="low", prompt=PROMPT * 2)
    worker.claim()
    worker.turn_until(lambda: worker.loop.roster.decoding_rows == 2)
    worker.loop.ask(Cancel({stream: CancelReason.CLIENT_REQUESTED}))
    worker.turn()
    series = worker.metrics.counters.snapshot()
    for lane, chunks, tokens, debt in (("normal", 2, 20, 0), ("low", 3, 40, 40 * 2)):
        assert series[f'prefill_grants_total{{lane="{lane}"}}'] == chunks
        assert series[f'prefill_chunks_total{{lane="{lane}"}}'] == chunks
        assert series[f'prefill_padded_tokens_total{{lane="{lane}"}}'] == tokens
        assert series[f'prefill_debt_made_tokens_total{{lane="{lane}"}}'] == debt
    cancelled = {name for name in series if name.startswith("cancellations_total")}
    assert cancelled == {'cancellations_total{stage="decoding",reason="client_requested",lane="normal"}'}
    assert worker.loop.roster.find(low) is not None
