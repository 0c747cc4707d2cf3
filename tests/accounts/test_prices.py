from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
import time_machine
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from accounts import prices
from accounts.audit import verification
from accounts.models import AuditEvent, Lane, Price
from accounts.refusals import ChangeRefusal, ChangeRefused
from tests.factories import ACTOR

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
AMOUNTS = st.decimals(0, prices.MOST, places=6)
TOKENS = st.integers(0, 2**31 - 1)


def price(prompt: str = "0.15", cached: str = "0.075", completion: str = "0.6") -> Price:
    return Price(
        model="m",
        currency="EUR",
        prompt=Decimal(prompt),
        cached=Decimal(cached),
        completion=Decimal(completion),
        valid_from=NOW,
    )


def add(**changes: Any) -> Price:
    values: dict[str, Any] = {
        "model": "m",
        "lane": None,
        "currency": "EUR",
        "prompt": Decimal("0.15"),
        "cached": Decimal("0.075"),
        "completion": Decimal("0.6"),
        "actor": ACTOR,
    }
    return prices.add(**{**values, **changes})


def test_the_cached_part_of_a_prompt_costs_the_cached_price() -> None:
    cost = prices.cost_of(price(), prompt_tokens=1000, cached_tokens=400, completion_tokens=50)
    assert cost == Decimal("0.000150000")  # 600 × 0.15 + 400 × 0.075 + 50 × 0.6, of a million


def test_nothing_costs_nothing_and_the_most_fits_in_its_column() -> None:
    assert prices.cost_of(price(), prompt_tokens=0, cached_tokens=0, completion_tokens=0) == 0
    dearest = price(str(prices.MOST), str(prices.MOST), str(prices.MOST))
    cost = prices.cost_of(dearest, prompt_tokens=2**31 - 1, cached_tokens=0, completion_tokens=2**31 - 1)
    assert len(cost.as_tuple().digits) <= 20


@pytest.mark.parametrize(("amount", "cost"), [("0.0005", "0E-9"), ("0.0015", "2E-9"), ("0.0025", "2E-9")])
def test_what_lies_in_the_middle_is_rounded_to_even(amount: str, cost: str) -> None:
    found = prices.cost_of(price(prompt=amount), prompt_tokens=1, cached_tokens=0, completion_tokens=0)
    assert found == Decimal(cost)


@given(AMOUNTS, AMOUNTS, AMOUNTS, TOKENS, TOKENS, st.data())
def test_a_cost_is_exact_but_for_one_rounding(
    prompt: Decimal, cached: Decimal, completion: Decimal, asked: int, answered: int, data: st.DataObject
) -> None:
    from_cache = data.draw(st.integers(0, asked))
    cost = prices.cost_of(
        price(str(prompt), str(cached), str(completion)),
        prompt_tokens=asked,
        cached_tokens=from_cache,
        completion_tokens=answered,
    )
    exact = Fraction(prompt) * (asked - from_cache) + Fraction(cached) * from_cache
    exact = (exact + Fraction(completion) * answered) / 1_000_000
    assert abs(Fraction(cost) - exact) <= Fraction(1, 2 * 10**9)
    assert -cost.as_tuple().exponent == prices.COST_PLACES  # type: ignore[operator]


@pytest.mark.django_db
def test_a_lanes_own_price_goes_before_that_of_every_lane_and_the_newest_before_older_ones() -> None:
    high = Lane.objects.get(name="high")
    with time_machine.travel(NOW, tick=False):
        old, new = add(), add(valid_from=NOW + timedelta(days=2))
        of_high = add(lane=high, valid_from=NOW + timedelta(days=1))
    hour, day = timedelta(hours=1), timedelta(days=1)
    assert prices.price_at("m", "high", NOW - hour) is None
    assert prices.price_at("other", "high", NOW) is None
    assert prices.price_at("m", "high", NOW) == old
    assert prices.price_at("m", "high", NOW + day) == of_high
    assert prices.price_at("m", "high", NOW + 3 * day) == of_high
    assert prices.price_at("m", "normal", NOW + 2 * day) == new
    assert prices.price_at("m", "normal", NOW + 2 * day - timedelta(microseconds=1)) == old


@pytest.mark.django_db
def test_the_audit_has_what_was_set_and_what_was_withdrawn() -> None:
    later = add(valid_from=timezone.now() + timedelta(days=1), lane=Lane.objects.get(name="low"))
    prices.withdraw(price=later, actor=ACTOR)
    assert not Price.objects.exists()
    added, withdrawn = AuditEvent.objects.order_by("sequence")
    assert (added.action, withdrawn.action) == ("price.add", "price.withdraw")
    assert added.after == withdrawn.before
    assert (added.after or {})["cached"] == "0.075000"
    assert verification.verify(from_scratch=True).fault is None
    prices.withdraw(price=later, actor=ACTOR)
    assert AuditEvent.objects.count() == 2


@pytest.mark.django_db
def test_a_price_that_holds_is_not_withdrawn() -> None:
    held = add()
    with pytest.raises(ChangeRefused) as refused:
        prices.withdraw(price=held, actor=ACTOR)
    assert refused.value.code is ChangeRefusal.PRICE_HOLDS
    assert Price.objects.get() == held


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"currency": "euro"}, "currency"),
        ({"currency": "€€€"}, "currency"),
        ({"prompt": Decimal("-0.1")}, "prompt"),
        ({"cached": Decimal("NaN")}, "cached"),
        ({"completion": Decimal("Infinity")}, "completion"),
        ({"completion": prices.MOST + 1}, "completion"),
        ({"prompt": Decimal("0.0000001")}, "prompt"),
        ({"model": " "}, "model"),
        ({"valid_from": NOW - timedelta(days=3650)}, "valid_from"),
    ],
)
def test_a_price_that_makes_no_sense_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(ChangeRefused) as refused:
        add(**changes)
    assert refused.value.field == field
    assert not Price.objects.exists()
    assert not AuditEvent.objects.exists()


@pytest.mark.django_db
def test_two_prices_cannot_begin_at_once() -> None:
    at = timezone.now() + timedelta(days=1)
    add(valid_from=at)
    add(valid_from=at, lane=Lane.objects.get(name="low"))
    with pytest.raises(ChangeRefused) as refused:
        add(valid_from=at)
    assert refused.value.field == "valid_from"
