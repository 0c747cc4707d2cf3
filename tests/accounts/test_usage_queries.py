from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from accounts.models import LedgerEntry
from accounts.tenancy import every_tenant
from accounts.usage_queries import EARLIEST, Bucket, Group, UsageRow, spans, usage

SEOUL, NEW_YORK, KOLKATA = ZoneInfo("Asia/Seoul"), ZoneInfo("America/New_York"), ZoneInfo("Asia/Kolkata")
#: Whole, half and quarter hours from UTC, on both sides; clocks that change by one hour, by half of one, at midnight.
ZONES = [
    "UTC",
    "Asia/Seoul",
    "Asia/Kolkata",
    "Asia/Kathmandu",
    "America/New_York",
    "America/St_Johns",
    "America/Santiago",
    "Australia/Lord_Howe",
    "Pacific/Kiritimati",
]
#: A month in which the clocks of most of them change.
MARCH = datetime(2027, 3, 1, tzinfo=UTC)

COUNTS = (
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "accepted_prediction_tokens",
    "rejected_prediction_tokens",
)


def used(at: datetime, **fields: Any) -> LedgerEntry:
    """A generation that was settled then."""
    entry = {
        "generation_id": uuid.uuid4(),
        "tenant_id": uuid.uuid4(),
        "model": "tiny",
        "lane": "normal",
        "prompt_tokens": 10,
        "cached_tokens": 4,
        "completion_tokens": 5,
        "accepted_prediction_tokens": 3,
        "rejected_prediction_tokens": 2,
        "settled_at": at,
    }
    with every_tenant("the test writes a ledger"):
        made: LedgerEntry = LedgerEntry.objects.create(**{**entry, **fields})
    return made


def asked(
    tenant: uuid.UUID | None,
    since: datetime,
    until: datetime,
    bucket: Bucket = Bucket.ALL,
    zone: ZoneInfo = SEOUL,
    *by: Group,
) -> list[UsageRow]:
    return usage(
        tenant_ids=None if tenant is None else [tenant],
        since=since,
        until=until,
        bucket=bucket,
        zone=zone,
        group_by=frozenset(by),
    )


MOMENTS = st.integers(0, 60 * 24 * 40).map(lambda minutes: MARCH + timedelta(minutes=minutes, seconds=17))


@given(
    zone=st.sampled_from(ZONES).map(ZoneInfo),
    bucket=st.sampled_from([Bucket.HOUR, Bucket.DAY]),
    since=MOMENTS,
    length=st.timedeltas(timedelta(seconds=1), timedelta(days=20)),
)
def test_buckets_have_no_gaps_and_a_day_is_one_of_the_calendar(
    zone: ZoneInfo, bucket: Bucket, since: datetime, length: timedelta
) -> None:
    found = spans(bucket, since, since + length, zone)
    assert (found[0].start, found[-1].end) == (since, since + length)
    assert all(one.end == other.start for one, other in pairwise(found))
    for one in found:
        assert one.begins <= one.start < one.end
        first, last = one.begins.astimezone(zone), (one.end - timedelta(microseconds=1)).astimezone(zone)
        assert first.date() == last.date()
        if bucket is Bucket.HOUR:
            assert one.end - one.begins <= timedelta(hours=1)
    if bucket is Bucket.DAY:
        days = [one.begins.astimezone(zone).date() for one in found]
        assert days == sorted(set(days))


def test_a_day_on_which_the_clocks_change_has_23_or_25_hours() -> None:
    for day, hours in ((datetime(2027, 3, 14), 23), (datetime(2027, 11, 7), 25), (datetime(2027, 6, 1), 24)):
        midnight = day.replace(tzinfo=NEW_YORK)
        found = spans(Bucket.DAY, midnight, midnight + timedelta(days=3), NEW_YORK)
        assert found[0].end - found[0].start == timedelta(hours=hours)
        assert len(spans(Bucket.HOUR, found[0].start, found[0].end, NEW_YORK)) == hours


def test_one_bucket_of_all_and_buckets_of_minutes() -> None:
    since = datetime(2027, 3, 1, 10, 59, 30, tzinfo=UTC)
    [whole] = spans(Bucket.ALL, since, since + timedelta(days=400), SEOUL)
    assert (whole.start, whole.end) == (since, since + timedelta(days=400))
    minutes = spans(Bucket.MINUTE, since, since + timedelta(minutes=2), KOLKATA)
    assert [one.start.strftime("%H:%M:%S") for one in minutes] == ["10:59:30", "11:00:00", "11:01:00"]
    assert spans(Bucket.DAY, since, since, SEOUL) == []


def by_hand(
    entries: Iterable[LedgerEntry], bucket: Bucket, since: datetime, until: datetime, zone: ZoneInfo
) -> Any:
    """What the rows should come to, entry by entry."""
    sums: defaultdict[datetime, list[int]] = defaultdict(lambda: [0] * (1 + len(COUNTS)))
    for entry in entries:
        for span in spans(bucket, since, until, zone):
            if span.start <= entry.settled_at < span.end:
                amounts = [1, *(getattr(entry, name) for name in COUNTS)]
                sums[span.start] = [one + other for one, other in zip(sums[span.start], amounts, strict=True)]
    return dict(sums)


@pytest.mark.django_db
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    zone=st.sampled_from(ZONES).map(ZoneInfo),
    bucket=st.sampled_from(Bucket),
    moments=st.lists(MOMENTS, min_size=1, max_size=12),
    since=MOMENTS,
    length=st.timedeltas(timedelta(minutes=1), timedelta(days=25)),
)
@example(
    zone=NEW_YORK,
    bucket=Bucket.DAY,
    moments=[datetime(2027, 3, 14, hour, 30, tzinfo=UTC) for hour in range(24)],
    since=MARCH,
    length=timedelta(days=25),
)
@example(
    zone=ZoneInfo("Australia/Lord_Howe"),
    bucket=Bucket.HOUR,
    moments=[
        datetime(2027, 4, 3, hour, minute, tzinfo=UTC) for hour in range(24) for minute in (0, 29, 30, 59)
    ],
    since=datetime(2027, 4, 2, tzinfo=UTC),
    length=timedelta(days=4),
)
def test_every_bucket_holds_exactly_what_was_settled_in_it(
    zone: ZoneInfo, bucket: Bucket, moments: list[datetime], since: datetime, length: timedelta
) -> None:
    if bucket is Bucket.MINUTE:
        length = min(length, timedelta(hours=30))
    tenant = uuid.uuid4()
    entries = [
        used(at, tenant_id=tenant, prompt_tokens=1 + number, completion_tokens=7**number % 1000)
        for number, at in enumerate(moments)
    ]
    rows = asked(tenant, since, since + length, bucket, zone)
    found = {row.bucket_start: [row.generations, *(getattr(row, name) for name in COUNTS)] for row in rows}
    assert found == by_hand(entries, bucket, since, since + length, zone)
    assert [row.bucket_start for row in rows] == sorted(found)
    known = {span.start: span.end for span in spans(bucket, since, since + length, zone)}
    assert all(known[row.bucket_start] == row.bucket_end for row in rows)


@pytest.mark.django_db
def test_usage_is_summed_by_what_is_asked_for_and_by_nothing_else() -> None:
    tenant, key, user = uuid.uuid4(), uuid.uuid4(), uuid.uuid4()
    used(MARCH, tenant_id=tenant, api_key_id=key, model="a", lane="high")
    used(MARCH, tenant_id=tenant, api_key_id=key, model="a", lane="low")
    used(MARCH, tenant_id=tenant, user_id=user, model="b", lane="low")
    until = MARCH + timedelta(days=1)

    [whole] = asked(tenant, MARCH, until)
    assert (whole.generations, whole.prompt_tokens, whole.completion_tokens) == (3, 30, 15)
    assert (whole.cached_tokens, whole.accepted_prediction_tokens) == (12, 9)
    assert whole.rejected_prediction_tokens == 6
    assert (whole.tenant_id, whole.api_key_id, whole.user_id, whole.model, whole.lane) == (None,) * 5

    by_model = asked(tenant, MARCH, until, Bucket.ALL, SEOUL, Group.MODEL)
    assert [(row.model, row.lane, row.generations) for row in by_model] == [("a", None, 2), ("b", None, 1)]
    by_lane = asked(tenant, MARCH, until, Bucket.DAY, SEOUL, Group.LANE)
    assert [(row.lane, row.generations) for row in by_lane] == [("high", 1), ("low", 2)]
    by_key = asked(tenant, MARCH, until, Bucket.ALL, SEOUL, Group.API_KEY)
    assert {row.api_key_id: row.generations for row in by_key} == {key: 2, None: 1}
    by_user = asked(tenant, MARCH, until, Bucket.ALL, SEOUL, Group.USER, Group.TENANT)
    assert {(row.tenant_id, row.user_id): row.generations for row in by_user} == {
        (tenant, None): 2,
        (tenant, user): 1,
    }


@pytest.mark.django_db
def test_only_the_tenants_that_are_asked_for_are_summed_and_none_means_all() -> None:
    mine, other = used(MARCH).tenant_id, used(MARCH).tenant_id
    until = MARCH + timedelta(days=1)
    assert [row.generations for row in asked(mine, MARCH, until)] == [1]
    assert [row.generations for row in asked(None, MARCH, until)] == [2]
    rows = asked(None, MARCH, until, Bucket.ALL, SEOUL, Group.TENANT)
    assert {row.tenant_id for row in rows} == {mine, other}
    everything = {"since": MARCH, "until": until, "bucket": Bucket.ALL, "zone": SEOUL}
    assert usage(tenant_ids=[], group_by=frozenset(), **everything) == []  # type: ignore[arg-type]
    [both] = usage(tenant_ids={mine, other}, group_by=frozenset(), **everything)  # type: ignore[arg-type]
    assert both.generations == 2


@pytest.mark.django_db
def test_the_start_counts_and_the_end_does_not() -> None:
    entry = used(MARCH)
    assert asked(entry.tenant_id, MARCH, MARCH + timedelta(seconds=1))
    assert not asked(entry.tenant_id, MARCH - timedelta(seconds=1), MARCH)
    assert not asked(entry.tenant_id, MARCH + timedelta(microseconds=1), MARCH + timedelta(days=1))
    assert asked(entry.tenant_id, EARLIEST - timedelta(days=9000), MARCH + timedelta(days=1))


@pytest.mark.django_db
def test_costs_are_exact_and_apart_by_currency() -> None:
    tenant = uuid.uuid4()
    for _ in range(10):
        used(MARCH, tenant_id=tenant, cost=Decimal("0.1"), currency="EUR")
    used(MARCH, tenant_id=tenant, cost=Decimal("123456.000000001"), currency="EUR")
    used(MARCH, tenant_id=tenant, cost=Decimal("0.000000001"), currency="USD")
    used(MARCH, tenant_id=tenant)
    [row] = asked(tenant, MARCH, MARCH + timedelta(hours=1), Bucket.HOUR)
    assert row.costs == {"EUR": Decimal("123457.000000001"), "USD": Decimal("0.000000001")}
    assert row.generations == 13


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("zone", "bucket", "queries"),
    [
        (KOLKATA, Bucket.DAY, 1),
        (KOLKATA, Bucket.HOUR, 1),
        (NEW_YORK, Bucket.DAY, 3),
        (NEW_YORK, Bucket.HOUR, 1),
    ],
)
def test_a_year_takes_one_query_and_one_more_for_each_change_of_the_clocks(
    zone: ZoneInfo, bucket: Bucket, queries: int
) -> None:
    since = datetime(2027, 1, 1, tzinfo=zone)
    with CaptureQueriesContext(connection) as asked_for:
        asked(uuid.uuid4(), since, since.replace(year=2028), bucket, zone)
    assert len(asked_for) == queries
