"""That a budget came to a share of its limit is written once, by whatever moved it there."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import time_machine
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext

from accounts import allowances, budget_events, reservations
from accounts.limits import LimitName, Limits, LimitState
from accounts.models import Allowance, BudgetEvent, BudgetWindow, Entitlement
from accounts.tenancy import every_tenant, tenant_scope
from tests.factories import ApiKeyFactory, EntitlementFactory

#: A Sunday: day and week end together, the month goes on.
NOON = datetime(2026, 3, 15, 12, tzinfo=UTC)


@pytest.fixture
def clock(db: None) -> Iterator[time_machine.Traveller]:
    with time_machine.travel(NOON, tick=False) as traveller:
        yield traveller


def budget(**limits: int) -> Entitlement:
    made: Entitlement = EntitlementFactory(**{f"allowance__{name}": limit for name, limit in limits.items()})
    return made


def use(of: Entitlement, tokens: int, *, key_allowance: Allowance | None = None) -> None:
    """One generation that is accepted and settled, and used ``tokens``."""
    settle(reserve(of, tokens, key_allowance=key_allowance), of, tokens)


def reserve(of: Entitlement, tokens: int, *, key_allowance: Allowance | None = None) -> uuid.UUID:
    generation_id = uuid.uuid4()
    with tenant_scope(of.tenant_id), transaction.atomic():
        reservations.reserve(
            generation_id=generation_id,
            tenant_id=of.tenant_id,
            entitlement_allowance_id=of.allowance_id,
            key_allowance_id=key_allowance.id if key_allowance else None,
            tokens=tokens,
            now=datetime.now(UTC),
        )
    return generation_id


def settle(generation_id: uuid.UUID, of: Entitlement, tokens: int) -> None:
    with tenant_scope(of.tenant_id), transaction.atomic():
        reservations.settle(generation_id, tokens, datetime.now(UTC))


def refuse(allowance: Allowance, tokens: int, name: LimitName = LimitName.TOKENS_PER_DAY) -> None:
    """A request of ``tokens`` meets the budget as it stands, and is refused for it."""
    now = datetime.now(UTC)
    with every_tenant("test"):
        allowance = Allowance.objects.select_related("tenant").get(id=allowance.id)
        states = reservations.states_of([allowance], now)[allowance.id]
    state = next(state for state in states if state.name == name)
    assert not state.allows(tokens)
    budget_events.refused(allowance, state, tokens, now)


def change(of: Entitlement, **limits: int) -> None:
    with tenant_scope(of.tenant_id), transaction.atomic():
        allowances.change(of.allowance_id, Limits(**limits))


def events() -> list[tuple[int, int, int]]:
    """Of each event its percent, what was used and of which limit."""
    with every_tenant("test"):
        return [
            (event.percent, event.used, event.limit)
            for event in BudgetEvent.objects.order_by("created_at", "percent")
        ]


@pytest.mark.usefixtures("clock")
def test_each_share_is_written_once_when_use_comes_to_it() -> None:
    entitlement = budget(tokens_per_day=100)
    for tokens, written in (
        (79, []),
        (1, [(80, 80, 100)]),
        (19, [(80, 80, 100)]),
        (1, [(80, 80, 100), (100, 100, 100)]),
    ):
        use(entitlement, tokens)
        assert events() == written


@pytest.mark.usefixtures("clock")
def test_an_event_carries_the_figures_as_they_were() -> None:
    entitlement = budget(tokens_per_day=100)
    reserve(entitlement, 15)
    use(entitlement, 83)
    with every_tenant("test"):
        event = BudgetEvent.objects.get()
        window = BudgetWindow.objects.get(id=event.window_id)
    assert (event.percent, event.limit, event.used, event.reserved) == (80, 100, 83, 15)
    assert (event.tenant_id, event.allowance_id) == (entitlement.tenant_id, entitlement.allowance_id)
    assert (event.subject, event.told_at) == ("lane normal", None)
    assert event.resets_at == window.ends_at == datetime(2026, 3, 16, tzinfo=UTC)
    assert window.told_percent == 80


@pytest.mark.usefixtures("clock")
def test_what_is_only_reserved_is_no_use() -> None:
    entitlement = budget(tokens_per_day=100)
    settle(reserve(entitlement, 100), entitlement, 10)
    assert events() == []


@pytest.mark.usefixtures("clock")
def test_a_leap_over_both_shares_writes_both() -> None:
    use(budget(tokens_per_day=100), 100)
    assert [percent for percent, _, _ in events()] == [80, 100]


@pytest.mark.usefixtures("clock")
def test_every_budget_of_the_entitlement_and_of_the_key_has_its_own() -> None:
    entitlement = budget(tokens_per_day=100, tokens_per_week=1000, tokens_per_month=90)
    key: Any = ApiKeyFactory(tenant=entitlement.tenant, name="ci", allowance__tokens_per_week=85)
    use(entitlement, 80, key_allowance=key.allowance)
    with every_tenant("test"):
        found = {(event.subject, event.limit) for event in BudgetEvent.objects.all()}
    assert found == {("lane normal", 100), ("lane normal", 90), (f"API key ci ({key.prefix}…)", 85)}


def test_a_new_window_is_told_of_anew(clock: time_machine.Traveller) -> None:
    entitlement = budget(tokens_per_day=100)
    use(entitlement, 90)
    clock.shift(timedelta(days=1))
    use(entitlement, 79)
    assert events() == [(80, 90, 100)]
    use(entitlement, 1)
    assert events() == [(80, 90, 100), (80, 80, 100)]


def test_what_is_settled_after_its_window_has_ended_is_no_news(clock: time_machine.Traveller) -> None:
    entitlement = budget(tokens_per_day=100)
    generation_id = reserve(entitlement, 90)
    clock.shift(timedelta(days=1))
    settle(generation_id, entitlement, 90)
    assert events() == []


@pytest.mark.usefixtures("clock")
def test_the_first_refusal_in_a_window_is_its_100_percent() -> None:
    entitlement = budget(tokens_per_day=100)
    use(entitlement, 60)
    refuse(entitlement.allowance, 50)
    refuse(entitlement.allowance, 50)
    use(entitlement, 40)
    assert events() == [(100, 60, 100)]


@pytest.mark.usefixtures("clock")
def test_a_request_that_would_never_fit_says_nothing_about_the_budget() -> None:
    entitlement = budget(tokens_per_day=100)
    use(entitlement, 10)
    refuse(entitlement.allowance, 101)
    assert events() == []


@pytest.mark.usefixtures("clock")
def test_rates_and_concurrency_are_no_budgets() -> None:
    entitlement = budget(tokens_per_day=100)
    use(entitlement, 10)
    for name in (LimitName.REQUESTS_PER_MINUTE, LimitName.TOKENS_PER_MINUTE, LimitName.CONCURRENCY):
        state = LimitState(name=name, limit=100, used=100)
        budget_events.refused(entitlement.allowance, state, 10, datetime.now(UTC))
    assert events() == []


@pytest.mark.usefixtures("clock")
def test_a_further_refusal_costs_one_query(django_assert_num_queries: Any) -> None:
    entitlement = budget(tokens_per_day=100)
    use(entitlement, 60)
    refuse(entitlement.allowance, 50)
    state = LimitState(name=LimitName.TOKENS_PER_DAY, limit=100, used=60)
    with django_assert_num_queries(1):
        budget_events.refused(entitlement.allowance, state, 50, datetime.now(UTC))


@pytest.mark.usefixtures("clock")
def test_a_limit_that_was_raised_since_the_refusal_is_not_told_as_used_up() -> None:
    entitlement = budget(tokens_per_day=100)
    use(entitlement, 60)
    met = LimitState(name=LimitName.TOKENS_PER_DAY, limit=100, used=60)
    change(entitlement, tokens_per_day=1000)
    budget_events.refused(entitlement.allowance, met, 50, datetime.now(UTC))
    assert events() == []


@pytest.mark.usefixtures("clock")
def test_lowering_a_limit_to_what_is_used_is_told() -> None:
    entitlement = budget(tokens_per_day=1000)
    use(entitlement, 85)
    change(entitlement, tokens_per_day=100)
    assert events() == [(80, 85, 100)]
    change(entitlement, tokens_per_day=50)
    assert events() == [(80, 85, 100), (100, 85, 50)]


@pytest.mark.usefixtures("clock")
def test_a_limit_that_is_raised_is_told_of_anew_in_place_of_what_was_told() -> None:
    entitlement = budget(tokens_per_day=100)
    use(entitlement, 100)
    change(entitlement, tokens_per_day=1000)
    use(entitlement, 699)
    assert events() == [(80, 100, 100), (100, 100, 100)]
    use(entitlement, 1)
    assert sorted(events()) == [(80, 800, 1000), (100, 100, 100)]
    use(entitlement, 200)
    assert events() == [(80, 800, 1000), (100, 1000, 1000)]


@pytest.mark.usefixtures("clock")
def test_a_limit_that_is_raised_a_little_or_stays_is_not_told_of_again() -> None:
    entitlement = budget(tokens_per_day=100)
    use(entitlement, 90)
    change(entitlement, tokens_per_day=110)
    change(entitlement, tokens_per_day=110, concurrency=4)
    use(entitlement, 5)
    assert events() == [(80, 90, 100)]


@pytest.mark.usefixtures("clock")
def test_a_limit_that_is_taken_away_and_set_again_is_told_of_again() -> None:
    entitlement = budget(tokens_per_day=100)
    use(entitlement, 90)
    change(entitlement)
    change(entitlement, tokens_per_day=100)
    with every_tenant("test"):
        [event] = BudgetEvent.objects.all()
    assert (event.percent, event.used) == (80, 90)
    assert event.told_at is None


@pytest.mark.usefixtures("clock")
def test_a_settlement_that_is_rolled_back_leaves_no_event() -> None:
    entitlement = budget(tokens_per_day=100)
    generation_id = reserve(entitlement, 90)

    def settle_and_fail() -> None:
        with tenant_scope(entitlement.tenant_id), transaction.atomic():
            reservations.settle(generation_id, 90, datetime.now(UTC))
            assert events() != []
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        settle_and_fail()
    assert events() == []
    with every_tenant("test"):
        assert not BudgetWindow.objects.exclude(told_percent=0).exists()


@pytest.mark.usefixtures("clock")
def test_a_settlement_looks_at_its_windows_only_where_there_is_a_budget() -> None:
    counts = []
    for entitlement in (budget(concurrency=4), budget(tokens_per_day=100)):
        generation_id = reserve(entitlement, 5)
        with CaptureQueriesContext(connection) as queries:
            settle(generation_id, entitlement, 5)
        counts.append(len(queries))
    assert counts[1] == counts[0] + 1


@pytest.mark.django_db(transaction=True)
def test_refusals_that_come_at_once_write_one_event() -> None:
    entitlement = budget(tokens_per_day=100)
    use(entitlement, 60)
    gate = threading.Barrier(4)

    def refused() -> None:
        gate.wait()
        try:
            refuse(entitlement.allowance, 50)
        finally:
            connection.close()

    threads = [threading.Thread(target=refused) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert events() == [(100, 60, 100)]
