from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from django.utils import timezone

from accounts import rates
from accounts.consumption import Consumption, consumption_of, read, rendered
from accounts.limits import LimitName, LimitState
from accounts.models import Allowance
from accounts.tenancy import every_tenant
from tests.factories import AllowanceFactory

DAY = LimitName.TOKENS_PER_DAY
SOON = datetime(2026, 3, 2, tzinfo=UTC)


def _row(limit: int | None, used: int, reserved: int = 0) -> Consumption:
    state = LimitState(name=DAY, limit=limit or 0, used=used, reserved=reserved, resets_at=SOON)
    return Consumption(name=DAY, limit=limit, state=state)


@pytest.mark.parametrize(
    ("row", "figure", "details", "mark", "bar"),
    [
        (_row(1000, 0), "0 of 1,000 used (0 %)", ["1,000 left"], "", (0, 0)),
        (
            _row(1000, 600, 100),
            "600 of 1,000 used (60 %)",
            ["400 left", "100 of it reserved by what runs"],
            "",
            (50, 10),
        ),
        (_row(1000, 799), "799 of 1,000 used (79 %)", ["201 left"], "", (79.9, 0)),
        (_row(1000, 800), "800 of 1,000 used (80 %)", ["200 left"], "near", (80, 0)),
        (_row(1000, 1000), "1,000 of 1,000 used (100 %)", ["0 left"], "full", (100, 0)),
        (
            _row(100, 400, 200),
            "400 of 100 used (400 %)",
            ["over by 300: nothing new is admitted", "200 of it reserved by what runs"],
            "over",
            (50, 50),
        ),
        (_row(0, 0), "0 used, none allowed", [], "", None),
        (_row(0, 5), "5 used, none allowed", ["over by 5: nothing new is admitted"], "over", None),
        (_row(None, 5, 5), "5 used, no limit", ["5 of it reserved by what runs"], "", None),
        (Consumption(name=DAY, limit=None, state=None), "no limit, and not counted", [], "", None),
        (
            Consumption(name=DAY, limit=9, state=None),
            "unknown: Valkey cannot be reached",
            [],
            "",
            None,
        ),
    ],
)
def test_a_limit_s_state_is_said_in_words_and_drawn(
    row: Consumption, figure: str, details: list[str], mark: str, bar: tuple[float, float] | None
) -> None:
    assert (row.figure, list(row.details), row.mark, row.bar) == (figure, details, mark, bar)
    page = rendered([row])
    assert "Tokens a day" in page
    assert figure in page
    assert ("<svg" in page) is (bar is not None)
    assert ("resets" in page) is (row.state is not None and row.state.used > 0)
    assert "Tokens a day" not in rendered([row], titled=False)


def test_all_six_limits_have_a_row_in_their_order() -> None:
    assert [row.name for row in consumption_of(Allowance(), [])] == list(LimitName)


@pytest.mark.django_db
@pytest.mark.usefixtures("valkey")
def test_rates_are_read_where_they_are_set_and_nothing_else_costs_a_query(
    django_assert_num_queries: Any,
) -> None:
    allowance: Allowance = AllowanceFactory(requests_per_minute=3)
    rates.take(allowance.id, rates.rates_of(allowance.id, allowance.limits), 10)
    with every_tenant("test"), django_assert_num_queries(2):
        rows = {row.name: row for row in read(allowance, timezone.now())}
    assert rows[LimitName.REQUESTS_PER_MINUTE].figure == "1 of 3 used (33 %)"
    resets_at = rows[LimitName.REQUESTS_PER_MINUTE].resets_at
    assert resets_at is not None
    assert resets_at <= timezone.now() + timedelta(seconds=61)
    assert rows[LimitName.TOKENS_PER_MINUTE].state is None
    assert allowance.limits.of(DAY) is None


@pytest.mark.django_db
@pytest.mark.usefixtures("valkey")
def test_while_valkey_is_away_the_budgets_are_shown_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*_: object) -> list[LimitState]:
        raise redis.ConnectionError("away")

    monkeypatch.setattr(rates, "read", away)
    allowance: Allowance = AllowanceFactory(requests_per_minute=3, tokens_per_day=10)
    with every_tenant("test"):
        rows = {row.name: row for row in read(allowance, timezone.now())}
    assert rows[LimitName.REQUESTS_PER_MINUTE].figure == "unknown: Valkey cannot be reached"
    assert rows[DAY].figure == "0 of 10 used (0 %)"
