"""The rule: what of one generation's three rows disagrees."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from accounts.ledger_findings import FindingCode
from accounts.models import LedgerEntry, Reservation
from inference.ledger_rows import Books, disagreements
from inference.models import Generation
from inference.models.generation import LIVE_STATES, TERMINAL_STATES, GenerationState

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
ID, TENANT, KEY = (uuid.UUID(int=n) for n in (1, 2, 3))
COUNTS = {
    "prompt_tokens": 10,
    "cached_tokens": 4,
    "completion_tokens": 3,
    "accepted_prediction_tokens": 1,
    "rejected_prediction_tokens": 2,
}


def generation(state: str, **changes: Any) -> Generation:
    fields = {"id": ID, "tenant_id": TENANT, "api_key_id": KEY, "lane_id": "normal", "created_at": NOW}
    return Generation(**{**fields, **COUNTS, "state": state, **changes})


def entry(**changes: Any) -> LedgerEntry:
    fields = {"generation_id": ID, "tenant_id": TENANT, "api_key_id": KEY, "lane": "normal", "model": "m"}
    return LedgerEntry(**{**fields, **COUNTS, **changes})


def held(settled: int | None = None) -> Reservation:
    return Reservation(
        generation_id=ID, tokens=50, settled_tokens=settled, settled_at=None if settled is None else NOW
    )


def codes(
    state: str,
    reservation: Reservation | None,
    booked: LedgerEntry | None,
    *,
    reserved_since: datetime = NOW - timedelta(days=1),
    **changes: Any,
) -> list[FindingCode]:
    books = Books(generation=generation(state, **changes), reservation=reservation, entry=booked)
    return [finding.code for finding in disagreements(books, reserved_since=reserved_since)]


@pytest.mark.parametrize("state", LIVE_STATES)
def test_a_live_generation_has_an_open_reservation_and_no_entry(state: str) -> None:
    assert codes(state, held(), None) == []
    assert codes(state, None, None) == [FindingCode.LIVE_WITHOUT_RESERVATION]
    assert codes(state, held(13), None) == [FindingCode.LIVE_BUT_SETTLED]
    assert codes(state, held(), entry()) == [FindingCode.LIVE_WITH_ENTRY]
    assert codes(state, held(13), entry()) == [FindingCode.LIVE_WITH_ENTRY, FindingCode.LIVE_BUT_SETTLED]


@pytest.mark.parametrize("state", TERMINAL_STATES)
def test_an_ended_generation_has_an_entry_and_a_reservation_that_is_settled_with_the_same_tokens(
    state: str,
) -> None:
    assert codes(state, held(13), entry()) == []
    assert codes(state, held(), entry()) == [FindingCode.ENDED_BUT_UNSETTLED]
    assert codes(state, None, entry()) == [FindingCode.ENDED_WITHOUT_RESERVATION]
    assert codes(state, held(14), entry()) == [FindingCode.SETTLED_TOKENS_DIFFER]
    assert codes(state, held(13), None) == [FindingCode.ENDED_WITHOUT_ENTRY]
    assert codes(state, held(), None) == [
        FindingCode.ENDED_WITHOUT_ENTRY,
        FindingCode.ENDED_BUT_UNSETTLED,
    ]


def test_what_was_accepted_before_there_were_reservations_needs_none() -> None:
    for state in (GenerationState.RUNNING, GenerationState.COMPLETED):
        booked = entry() if state in TERMINAL_STATES else None
        assert codes(state, None, booked, reserved_since=NOW + timedelta(seconds=1)) == []
        assert len(codes(state, None, booked, reserved_since=NOW)) == 1
    # A reservation that is there is held to what it says, whenever it was made.
    assert codes("completed", held(14), entry(), reserved_since=NOW + timedelta(days=1)) != []


@pytest.mark.parametrize("name", [*COUNTS, "tenant_id", "api_key_id", "user_id", "lane"])
def test_an_entry_says_of_its_generation_what_that_says_of_itself(name: str) -> None:
    other: Any = COUNTS[name] + 1 if name in COUNTS else "high" if name == "lane" else uuid.uuid4()
    booked = entry(**{name: other})
    books = Books(
        generation=generation("failed"),
        reservation=held(booked.prompt_tokens + booked.completion_tokens),
        entry=booked,
    )
    [finding] = disagreements(books, reserved_since=NOW)
    assert finding.code is FindingCode.ENTRY_DIFFERS
    assert finding.found[name] == other
    assert finding.expected.keys() == {name}
