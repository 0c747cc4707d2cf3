"""Days, weeks and months of the tenant's calendar: every moment is in exactly one, whatever its clocks do."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo, available_timezones

import pytest
import time_machine
from hypothesis import given, settings
from hypothesis import strategies as st

from accounts.budget_windows import Period, Window, window_at
from accounts.limits import LimitName
from inference.intake import Accepted, Refused, accept
from tests.factories import EntitlementFactory, LanguageModelFactory, TenantFactory
from tests.inference.doors import principal_of, submission

SEOUL, NEW_YORK, SAO_PAULO = (
    ZoneInfo("Asia/Seoul"),
    ZoneInfo("America/New_York"),
    ZoneInfo("America/Sao_Paulo"),
)
KATHMANDU, LORD_HOWE, CAIRO = (
    ZoneInfo("Asia/Kathmandu"),
    ZoneInfo("Australia/Lord_Howe"),
    ZoneInfo("Africa/Cairo"),
)
APIA, ST_JOHNS = ZoneInfo("Pacific/Apia"), ZoneInfo("America/St_Johns")
MOMENT = timedelta(microseconds=1)

zones = st.sampled_from(sorted(available_timezones())).map(ZoneInfo)
moments = st.datetimes(datetime(1990, 1, 1), datetime(2037, 1, 1), timezones=st.just(UTC))
periods = st.sampled_from(Period)


def _utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def _day(zone: ZoneInfo, at: str) -> Window:
    return window_at(Period.DAY, _utc(at), zone)


def _hours(window: Window) -> float:
    return (window.ends_at - window.starts_at) / timedelta(hours=1)


@given(period=periods, zone=zones, at=moments, share=st.floats(0, 1))
@settings(max_examples=400)
def test_every_moment_is_in_exactly_one_window(
    period: Period, zone: ZoneInfo, at: datetime, share: float
) -> None:
    window = window_at(period, at, zone)
    assert window.starts_at <= at < window.ends_at
    other = window.starts_at + (window.ends_at - window.starts_at - MOMENT) * share
    assert window_at(period, other, zone) == window
    assert window_at(period, window.ends_at - MOMENT, zone) == window
    assert window_at(period, window.ends_at, zone).starts_at == window.ends_at
    assert window_at(period, window.starts_at - MOMENT, zone).ends_at == window.starts_at


@given(period=periods, zone=zones, at=moments)
def test_a_window_is_as_long_as_its_name_says_give_or_take_a_clock_change(
    period: Period, zone: ZoneInfo, at: datetime
) -> None:
    window = window_at(period, at, zone)
    days = {Period.DAY: (1, 1), Period.WEEK: (7, 7), Period.MONTH: (28, 31)}[period]
    # Samoa moved from one side of the date line to the other.
    assert timedelta(days=days[0] - 1) <= window.ends_at - window.starts_at <= timedelta(days=days[1] + 1)


@given(zone=st.sampled_from([SEOUL, NEW_YORK, KATHMANDU, LORD_HOWE]), at=moments)
def test_windows_begin_at_midnight_and_weeks_on_monday_and_months_on_their_first(
    zone: ZoneInfo, at: datetime
) -> None:
    starts = {period: window_at(period, at, zone).starts_at.astimezone(zone) for period in Period}
    assert {start.time() for start in starts.values()} == {time.min}
    assert starts[Period.DAY].date() == at.astimezone(zone).date()
    assert starts[Period.WEEK].weekday() == 0
    assert starts[Period.MONTH].day == 1


@given(
    period=periods,
    first=moments,
    steps=st.lists(st.tuples(st.timedeltas(timedelta(), timedelta(days=40)), zones), min_size=1, max_size=12),
)
def test_a_tenant_that_moves_around_the_world_is_never_in_two_windows(
    period: Period, first: datetime, steps: list[tuple[timedelta, ZoneInfo]]
) -> None:
    """As reservations open them: one that holds is used on, whatever the time zone is by now."""
    now, opened = first, [window_at(period, first, steps[0][1])]
    for wait, zone in steps:
        now += wait
        if now >= opened[-1].ends_at:
            opened.append(window_at(period, now, zone, previous_end=opened[-1].ends_at))
        assert opened[-1].starts_at <= now < opened[-1].ends_at
    assert all(earlier.ends_at <= later.starts_at for earlier, later in pairwise(opened))


@pytest.mark.parametrize(
    ("zone", "at", "hours"),
    [
        (NEW_YORK, "2026-03-07T12:00", 24),
        (NEW_YORK, "2026-03-08T12:00", 23),
        (NEW_YORK, "2026-11-01T12:00", 25),
        (LORD_HOWE, "2026-04-04T20:00", 24.5),
        (LORD_HOWE, "2026-10-03T20:00", 23.5),
        (SEOUL, "2026-03-08T12:00", 24),
    ],
)
def test_a_day_is_as_long_as_the_clocks_make_it(zone: ZoneInfo, at: str, hours: float) -> None:
    assert _hours(_day(zone, at)) == hours


@pytest.mark.parametrize(
    ("zone", "at", "first_moment", "shown"),
    [
        # The clocks went from 00:00 to 01:00: there was no midnight.
        (SAO_PAULO, "2018-11-04T12:00", "2018-11-04T03:00", time(1)),
        (CAIRO, "2023-04-28T12:00", "2023-04-27T22:00", time(1)),
        # And from 00:00 back to 23:00: the day before went on.
        (SAO_PAULO, "2018-02-18T12:00", "2018-02-18T03:00", time(0)),
        (KATHMANDU, "2026-06-01T12:00", "2026-05-31T18:15", time(0)),
    ],
)
def test_a_day_begins_with_the_first_moment_that_the_calendar_calls_by_its_name(
    zone: ZoneInfo, at: str, first_moment: str, shown: time
) -> None:
    starts_at = _day(zone, at).starts_at
    assert starts_at == _utc(first_moment)
    assert starts_at.astimezone(zone).time() == shown
    assert (starts_at - MOMENT).astimezone(zone).date() < starts_at.astimezone(zone).date()


def test_a_day_that_was_left_out_has_no_window() -> None:
    """Samoa went from the 29th of December to the 31st."""
    thursday = _day(APIA, "2011-12-30T09:59")
    saturday = _day(APIA, "2011-12-30T10:00")
    assert thursday.ends_at == saturday.starts_at == _utc("2011-12-30T10:00")
    assert saturday.starts_at.astimezone(APIA).date() == date(2011, 12, 31)


def test_a_date_that_came_round_twice_is_one_day_that_goes_on() -> None:
    """Newfoundland put its clocks back a minute after midnight: it was the 7th, then the 6th again, then the 7th."""
    seventh = _day(ST_JOHNS, "2010-11-07T02:30")
    assert _day(ST_JOHNS, "2010-11-07T02:45") == _day(ST_JOHNS, "2010-11-07T12:00") == seventh
    assert seventh.starts_at == _utc("2010-11-07T02:30")


@pytest.mark.parametrize(
    ("at", "starts", "ends"),
    [
        ("2024-02-29T12:00", "2024-02-01T00:00", "2024-03-01T00:00"),
        ("2026-02-01T00:00", "2026-02-01T00:00", "2026-03-01T00:00"),
        ("2026-12-31T23:59", "2026-12-01T00:00", "2027-01-01T00:00"),
    ],
)
def test_months_are_as_long_as_they_are(at: str, starts: str, ends: str) -> None:
    assert window_at(Period.MONTH, _utc(at), ZoneInfo("UTC")) == Window(_utc(starts), _utc(ends))


def test_a_week_goes_on_over_the_years_end() -> None:
    window = window_at(Period.WEEK, _utc("2027-01-01T12:00"), ZoneInfo("UTC"))
    assert window == Window(_utc("2026-12-28T00:00"), _utc("2027-01-04T00:00"))


def test_after_a_move_the_new_window_begins_where_the_last_one_ended() -> None:
    old = _day(SEOUL, "2026-05-05T14:00")
    new = window_at(Period.DAY, old.ends_at, NEW_YORK, previous_end=old.ends_at)
    assert new == Window(old.ends_at, _utc("2026-05-06T04:00"))
    assert window_at(Period.DAY, new.ends_at, NEW_YORK, previous_end=new.ends_at) == Window(
        new.ends_at, _utc("2026-05-07T04:00")
    )


def test_a_window_that_ended_long_ago_does_not_matter() -> None:
    window = window_at(Period.DAY, _utc("2026-05-05T14:00"), SEOUL, previous_end=_utc("2026-05-01T15:00"))
    assert window == _day(SEOUL, "2026-05-05T14:00")


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("valkey")
@pytest.mark.parametrize(
    ("zone", "first", "hours"),
    [
        (SEOUL, date(2026, 3, 6), [24, 24, 24]),
        (NEW_YORK, date(2026, 3, 6), [24, 23, 24]),
        (SEOUL, date(2026, 10, 30), [24, 24, 24]),
        (NEW_YORK, date(2026, 10, 30), [24, 25, 24]),
    ],
    ids=["Seoul-March", "New-York-March", "Seoul-November", "New-York-November"],
)
def test_q12_a_daily_budget_follows_the_tenants_calendar_and_resets_when_it_says(
    zone: ZoneInfo, first: date, hours: list[int]
) -> None:
    tenant, model = TenantFactory(time_zone=zone.key), LanguageModelFactory()
    EntitlementFactory(tenant=tenant, allowance__tokens_per_day=100)
    principal = principal_of(tenant)

    def ask() -> Accepted:
        return accept(principal, submission(model, prompt=[5] * 10, max_tokens=90))

    said: list[datetime] = []
    with time_machine.travel(datetime.combine(first, time(12), zone).astimezone(UTC), tick=False) as clock:
        for day in range(4):
            (of_day,) = ask().limits
            midnight = datetime.combine(first + timedelta(days=day + 1), time.min, zone).astimezone(UTC)
            assert (of_day.name, of_day.used, of_day.resets_at) == (LimitName.TOKENS_PER_DAY, 100, midnight)
            with pytest.raises(Refused) as refusal:
                ask()
            assert refusal.value.limit is not None
            assert refusal.value.limit.resets_at == midnight
            assert f"{midnight:%Y-%m-%dT%H:%M:%SZ}" in refusal.value.message
            assert refusal.value.retry_after_s == (midnight - datetime.now(UTC)).total_seconds()
            clock.move_to(midnight - MOMENT)
            with pytest.raises(Refused):
                ask()
            # The next day's first request is made at the very moment that was said.
            clock.move_to(midnight)
            said.append(midnight)
    assert [(later - earlier) / timedelta(hours=1) for earlier, later in pairwise(said)] == hours


@pytest.mark.django_db(transaction=True)
@pytest.mark.usefixtures("valkey")
def test_a_tenant_that_moves_keeps_its_day_until_that_ends() -> None:
    tenant, model = TenantFactory(time_zone="Asia/Seoul"), LanguageModelFactory()
    EntitlementFactory(tenant=tenant, allowance__tokens_per_day=100)
    principal = principal_of(tenant)
    with time_machine.travel(_utc("2026-05-05T03:00"), tick=False) as clock:
        accept(principal, submission(model, prompt=[5] * 10, max_tokens=90))
        tenant.time_zone = "America/New_York"
        tenant.save()
        # New York's 5th of May begins, and nothing is given anew.
        clock.move_to(_utc("2026-05-05T04:00"))
        with pytest.raises(Refused) as refusal:
            accept(principal, submission(model))
        assert refusal.value.limit is not None
        assert refusal.value.limit.resets_at == _utc("2026-05-05T15:00")
        clock.move_to(_utc("2026-05-05T15:00"))
        (of_day,) = accept(principal, submission(model)).limits
        assert of_day.resets_at == _utc("2026-05-06T04:00")
