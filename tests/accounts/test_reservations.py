"""Holding back, and settling: under one lock, in one order, in the windows of the time of the admission."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from threading import Barrier

import pytest
from django.db import IntegrityError, connection, transaction
from pytest_django import DjangoAssertNumQueries

from accounts import allowances, reservations
from accounts.limits import LimitName, Limits, LimitState
from accounts.models import Allowance, BudgetWindow, Reservation
from accounts.reservations import Short, States
from accounts.tenancy import every_tenant
from tests.factories import AllowanceFactory, TenantFactory

NOON = datetime(2026, 3, 31, 12, tzinfo=UTC)


@dataclass(frozen=True)
class Pair:
    """An entitlement's allowance and a key's, of one tenant."""

    entitlement: Allowance
    key: Allowance

    def reserve(
        self, tokens: int, now: datetime = NOON, *, generation: uuid.UUID | None = None, swapped: bool = False
    ) -> States:
        """Hold ``tokens`` back, in a transaction of its own; the other way around if ``swapped``."""
        first, second = (self.key, self.entitlement) if swapped else (self.entitlement, self.key)
        with _books():
            return reservations.reserve(
                generation_id=generation or uuid.uuid4(),
                tenant_id=first.tenant_id,
                entitlement_allowance_id=first.id,
                key_allowance_id=second.id,
                tokens=tokens,
                now=now,
            )

    def windows(self) -> list[tuple[int, int]]:
        """Reserved and used of the six windows there are, all alike."""
        with every_tenant("test"):
            return sorted(BudgetWindow.objects.values_list("reserved", "used"))

    def live(self) -> set[int]:
        with every_tenant("test"):
            return set(Allowance.objects.values_list("live_generations", flat=True))


@pytest.fixture
def pair(db: None) -> Pair:
    tenant = TenantFactory()
    return Pair(AllowanceFactory(tenant=tenant), AllowanceFactory(tenant=tenant))


@contextmanager
def _books() -> Iterator[None]:
    with every_tenant("test"), transaction.atomic():
        yield


def _limit(allowance: Allowance, **limits: int | None) -> None:
    with _books():
        allowances.change(allowance.id, Limits(**limits))


def _settle(generation: uuid.UUID, tokens: int, now: datetime = NOON) -> Reservation | None:
    with _books():
        return reservations.settle(generation, tokens, now)


def test_what_is_held_back_counts_in_each_window_of_both_allowances_and_as_live(pair: Pair) -> None:
    generation = uuid.uuid4()
    pair.reserve(40, generation=generation)
    assert pair.windows() == [(40, 0)] * 6
    assert pair.live() == {1}
    with every_tenant("test"):
        reservation = Reservation.objects.get()
    assert (reservation.generation_id, reservation.tokens, reservation.reserved_at) == (generation, 40, NOON)
    assert (reservation.settled_at, reservation.settled_tokens) == (None, None)


def test_the_rest_is_let_go_when_it_is_settled_and_settling_again_changes_nothing(pair: Pair) -> None:
    generation = uuid.uuid4()
    pair.reserve(40, generation=generation)
    pair.reserve(100)
    settled = _settle(generation, 13)
    assert settled is not None
    assert pair.windows() == [(100, 13)] * 6
    assert pair.live() == {1}
    assert _settle(generation, 40) is None
    assert _settle(uuid.uuid4(), 40) is None, "it has no reservation"
    assert pair.windows() == [(100, 13)] * 6
    assert pair.live() == {1}


def test_the_answer_says_where_the_limits_stand_that_are_set(pair: Pair) -> None:
    _limit(pair.entitlement, tokens_per_day=100, concurrency=2)
    _limit(pair.key, tokens_per_month=50, requests_per_minute=1)
    states = pair.reserve(40)
    midnight = datetime(2026, 4, 1, tzinfo=UTC)
    assert states == {
        pair.entitlement.id: (
            LimitState(name=LimitName.TOKENS_PER_DAY, limit=100, used=40, reserved=40, resets_at=midnight),
            LimitState(name=LimitName.CONCURRENCY, limit=2, used=1),
        ),
        pair.key.id: (
            LimitState(name=LimitName.TOKENS_PER_MONTH, limit=50, used=40, reserved=40, resets_at=midnight),
        ),
    }
    with every_tenant("test"):
        seen = reservations.states_of(Allowance.objects.select_related("tenant"), NOON)
    assert seen == states


@pytest.mark.parametrize("limit", [{"tokens_per_day": 99}, {"tokens_per_month": 99}, {"concurrency": 1}])
@pytest.mark.parametrize("whose", ["entitlement", "key"])
def test_what_does_not_fit_is_refused_by_name_and_leaves_nothing(
    pair: Pair, whose: str, limit: dict[str, int]
) -> None:
    pair.reserve(60)
    allowance = getattr(pair, whose)
    _limit(allowance, **limit)
    with pytest.raises(Short) as short:
        pair.reserve(40)
    assert short.value.allowance_id == allowance.id
    assert {short.value.state.name.value: short.value.state.limit} == limit
    assert pair.windows() == [(60, 0)] * 6
    assert pair.live() == {1}


def test_exactly_what_is_left_fits(pair: Pair) -> None:
    _limit(pair.entitlement, tokens_per_day=100, concurrency=2)
    pair.reserve(60)
    pair.reserve(40)
    with pytest.raises(Short):
        pair.reserve(0)  # no token is left to take, but no place either
    assert pair.windows() == [(100, 0)] * 6


def test_a_limit_lowered_below_its_use_is_over_and_admits_nothing(pair: Pair) -> None:
    pair.reserve(60)
    _limit(pair.entitlement, tokens_per_day=50)
    with pytest.raises(Short) as short:
        pair.reserve(1)
    assert short.value.state.over
    assert short.value.state.remaining == 0
    _limit(pair.entitlement, tokens_per_day=61)
    pair.reserve(1)


def test_a_limit_that_is_set_late_counts_what_was_used_before(pair: Pair) -> None:
    generation = uuid.uuid4()
    pair.reserve(60, generation=generation)
    _settle(generation, 50)
    _limit(pair.key, tokens_per_week=100)
    pair.reserve(50)
    with pytest.raises(Short):
        pair.reserve(1)


def test_a_generation_counts_where_it_was_admitted_whenever_it_ends(pair: Pair) -> None:
    """Admitted on the last day of a month and settled on the first of the next, a Wednesday of the same week."""
    generation = uuid.uuid4()
    pair.reserve(40, generation=generation)
    tomorrow = NOON + timedelta(days=1)
    pair.reserve(7, tomorrow)
    _settle(generation, 13, tomorrow)
    with every_tenant("test"):
        rows = {
            (window.period, f"{window.starts_at:%m-%d}"): (window.reserved, window.used)
            for window in BudgetWindow.objects.filter(allowance=pair.key)
        }
    assert rows == {
        ("day", "03-31"): (0, 13),
        ("day", "04-01"): (7, 0),
        ("week", "03-30"): (7, 13),
        ("month", "03-01"): (0, 13),
        ("month", "04-01"): (7, 0),
    }


def test_a_key_that_has_no_allowance_holds_nothing_back(pair: Pair) -> None:
    with _books():
        reservations.reserve(
            generation_id=uuid.uuid4(),
            tenant_id=pair.entitlement.tenant_id,
            entitlement_allowance_id=pair.entitlement.id,
            key_allowance_id=None,
            tokens=40,
            now=NOON,
        )
    assert pair.windows() == [(40, 0)] * 3
    assert pair.live() == {0, 1}


@pytest.mark.parametrize("field", ["used", "reserved", "live_generations"])
def test_the_database_itself_refuses_books_below_zero(pair: Pair, field: str) -> None:
    pair.reserve(40)
    rows = Allowance.objects if field == "live_generations" else BudgetWindow.objects
    with pytest.raises(IntegrityError), _books():
        rows.update(**{field: -1})


def test_what_it_costs_in_queries(pair: Pair, django_assert_num_queries: DjangoAssertNumQueries) -> None:
    """Lock and windows are read; windows, allowances and the reservation are written. Limits cost nothing more."""
    first, second = uuid.uuid4(), uuid.uuid4()
    pair.reserve(1, generation=first)
    _limit(pair.entitlement, tokens_per_day=100, tokens_per_week=100, tokens_per_month=100, concurrency=9)
    with _books(), django_assert_num_queries(5):
        reservations.reserve(
            generation_id=second,
            tenant_id=pair.entitlement.tenant_id,
            entitlement_allowance_id=pair.entitlement.id,
            key_allowance_id=pair.key.id,
            tokens=1,
            now=NOON,
        )
    # One more looks whether a budget has come to a share that somebody is told of.
    with _books(), django_assert_num_queries(6):
        reservations.settle(first, 1, NOON)
    _limit(pair.entitlement)
    with _books(), django_assert_num_queries(5):
        reservations.settle(second, 1, NOON)
    with _books():
        found = list(Allowance.objects.select_related("tenant"))
        with django_assert_num_queries(1):
            reservations.states_of(found, NOON)


def test_allowances_are_locked_in_the_order_of_their_ids(pair: Pair) -> None:
    ids = sorted([pair.entitlement.id, pair.key.id])
    for swapped in (False, True):
        generation = uuid.uuid4()
        pair.reserve(1, generation=generation, swapped=swapped)
        with every_tenant("test"):
            assert Reservation.objects.get(generation_id=generation).allowance_ids == ids
    with _books():
        assert [allowance.id for allowance in reservations.lock(reversed(ids))] == ids


THREADS, ROUNDS = 6, 12


@pytest.mark.django_db(transaction=True)
def test_who_holds_two_allowances_in_opposite_roles_waits_and_does_not_deadlock() -> None:
    tenant = TenantFactory()
    pair = Pair(AllowanceFactory(tenant=tenant), AllowanceFactory(tenant=tenant))
    together = Barrier(THREADS)

    def work(number: int) -> None:
        try:
            together.wait()
            for round_ in range(ROUNDS):
                generation = uuid.uuid4()
                pair.reserve(10, generation=generation, swapped=bool((number + round_) % 2))
                settled = _settle(generation, 3)
                assert settled is not None
        finally:
            connection.close()

    with ThreadPoolExecutor(THREADS) as pool:
        list(pool.map(work, range(THREADS)))
    assert pair.windows() == [(0, 3 * THREADS * ROUNDS)] * 6
    assert pair.live() == {0}


@pytest.mark.django_db(transaction=True)
def test_threads_that_reserve_at_once_get_exactly_what_there_is() -> None:
    tenant = TenantFactory()
    pair = Pair(
        AllowanceFactory(tenant=tenant, tokens_per_day=70), AllowanceFactory(tenant=tenant, concurrency=9)
    )
    together = Barrier(THREADS)

    def work(_: int) -> int:
        taken = 0
        try:
            together.wait()
            for _round in range(4):
                try:
                    pair.reserve(10)
                    taken += 1
                except Short:
                    continue
        finally:
            connection.close()
        return taken

    with ThreadPoolExecutor(THREADS) as pool:
        assert sum(pool.map(work, range(THREADS))) == 7
    assert pair.windows() == [(70, 0)] * 6
    assert pair.live() == {7}


@pytest.mark.django_db(transaction=True)
def test_one_generation_settled_by_many_at_once_is_settled_once() -> None:
    tenant = TenantFactory()
    pair = Pair(AllowanceFactory(tenant=tenant), AllowanceFactory(tenant=tenant))
    generation = uuid.uuid4()
    pair.reserve(10, generation=generation)
    together = Barrier(THREADS)

    def work(number: int) -> bool:
        try:
            together.wait()
            return _settle(generation, number) is not None
        finally:
            connection.close()

    with ThreadPoolExecutor(THREADS) as pool:
        outcomes = list(pool.map(work, range(THREADS)))
    assert sum(outcomes) == 1
    assert pair.windows() == [(0, outcomes.index(True))] * 6
    assert pair.live() == {0}
