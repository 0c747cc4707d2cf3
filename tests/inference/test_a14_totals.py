"""A14: after random traffic with failures and cancels, whoever adds usage up comes to the same number, to the token."""

from __future__ import annotations

import csv
import random
import uuid
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from urllib.parse import urlencode
from zoneinfo import ZoneInfo

import pytest
import redis
import time_machine
from asgiref.sync import async_to_sync
from django.db.models import Sum
from django.test import Client
from django.urls import reverse

from accounts import ledger, prices
from accounts.models import BudgetWindow, Lane, LedgerEntry, Price, Reservation, Tenant, UsageRollup
from accounts.principal import Principal
from accounts.tenancy import every_tenant
from accounts.usage_queries import Bucket, Group, UsageRow, usage
from inference import ledger_check
from inference.cancellation import cancel
from inference.dispatch import claims
from inference.messages import CancelReason, End, EndState, Failure, FinishReason, Usage
from inference.models import LanguageModel
from inference.settlement import settle
from tests.factories import ApiKeyFactory, EntitlementFactory, LanguageModelFactory, TenantFactory
from tests.inference.api.asgi_client import AsgiClient
from tests.inference.doors import accepted, claimed, principal_of

pytestmark = pytest.mark.django_db(transaction=True)

#: Over a change of the clocks in New York, and the end of a month everywhere.
SINCE, UNTIL = datetime(2026, 10, 30, tzinfo=UTC), datetime(2026, 11, 3, tzinfo=UTC)
ZONES = ("UTC", "Asia/Seoul", "America/New_York", "Asia/Kathmandu")
COUNTS = ("generations", *ledger.TOKEN_COUNTS)


@dataclass(frozen=True)
class Fact:
    """What the test itself knows of one generation."""

    at: datetime
    tenant: uuid.UUID
    key: uuid.UUID
    model: str
    lane: str
    usage: Usage
    cost: tuple[str, Decimal] | None

    def counts(self) -> Counter[str]:
        return Counter(generations=1, **{name: getattr(self.usage, name) for name in ledger.TOKEN_COUNTS})


def _price(model: str, lane: str | None, amount: str, currency: str, since: datetime) -> None:
    one = Decimal(amount)
    of = None if lane is None else Lane.objects.get(name=lane)
    Price.objects.create(
        model=model,
        lane=of,
        currency=currency,
        prompt=one,
        cached=one / 4,
        completion=one * 3,
        valid_from=since,
    )


class Traffic:
    """Random generations of several tenants, one after the other, and what is known of each."""

    def __init__(self, client: redis.Redis, seed: int) -> None:
        self._client = client
        self._random = random.Random(seed)
        self.facts: list[Fact] = []
        self.models: list[LanguageModel] = [LanguageModelFactory(name=f"org/model-{n}") for n in range(3)]
        self.zones: dict[uuid.UUID, ZoneInfo] = {}
        self._people: list[Principal] = []
        for zone in ZONES:
            tenant = TenantFactory(time_zone=zone)
            self.zones[tenant.id] = ZoneInfo(zone)
            for lane in Lane.objects.all():
                EntitlementFactory(tenant=tenant, lane=lane)
            self._people += [principal_of(tenant), principal_of(tenant)]
        _price("org/model-0", None, "0.15", "EUR", SINCE)
        _price("org/model-0", "high", "0.33", "EUR", SINCE)
        _price("org/model-0", None, "0.1", "USD", SINCE + timedelta(days=2))
        _price("org/model-1", "low", "0.000001", "EUR", SINCE + timedelta(days=1))

    def run(self, count: int) -> None:
        """So many generations, at random times in order, each of which ends at some time later."""
        span = (UNTIL - SINCE).total_seconds()
        for second in sorted(self._random.uniform(0, span) for _ in range(count)):
            self._one(SINCE + timedelta(seconds=second))

    def _one(self, at: datetime) -> None:
        draw = self._random
        who, model = draw.choice(self._people), draw.choice(self.models)
        lane = draw.choice(["high", "normal", "low"])
        asked, most = draw.randint(1, 900), draw.randint(1, 900)
        with time_machine.travel(at, tick=False):
            got = accepted(model, who, requested_lane=lane, prompt=[1] * asked, max_tokens=most)
            if draw.random() < 0.2:
                cancel(got.generation_id, CancelReason.CLIENT_REQUESTED)
                self._note(at, who, model, lane, Usage(prompt_tokens=0, completion_tokens=0))
                return
            claim = claimed(self._client, model)
        later = at + timedelta(seconds=draw.expovariate(1 / 1800))
        end = self._end(claim.epoch, asked, most)
        with time_machine.travel(later, tick=False):
            assert settle(got.generation_id, claim.epoch, end)
            assert not settle(got.generation_id, claim.epoch, end)
            assert claims.acknowledge(self._client, claim.task.generation, claim.epoch, 0)
        self._note(later, who, model, lane, end.usage)

    def _end(self, epoch: int, asked: int, most: int) -> End:
        draw = self._random
        state = draw.choice([EndState.COMPLETED, EndState.COMPLETED, *EndState])
        answered = draw.randint(0, most)
        return End(
            seq=1,
            epoch=epoch,
            state=state,
            finish_reason=FinishReason.LENGTH if state is EndState.COMPLETED else None,
            cancel_reason=CancelReason.DETACHED if state is EndState.CANCELLED else None,
            failure=Failure(code="internal_error", message="x") if state is EndState.FAILED else None,
            usage=Usage(
                prompt_tokens=asked,
                cached_tokens=draw.randint(0, asked),
                completion_tokens=answered,
                accepted_prediction_tokens=draw.randint(0, answered),
                rejected_prediction_tokens=draw.randint(0, 50),
            ),
        )

    def _note(self, at: datetime, who: Principal, model: LanguageModel, lane: str, usage: Usage) -> None:
        assert who.api_key_id is not None
        price = prices.price_at(model.name, lane, at)
        cost = None
        if price is not None:
            amount = (
                price.prompt * (usage.prompt_tokens - usage.cached_tokens)
                + price.cached * usage.cached_tokens
                + price.completion * usage.completion_tokens
            )
            cost = price.currency, round(amount / 1_000_000, 9)
        self.facts.append(Fact(at, who.tenant_id, who.api_key_id, model.name, lane, usage, cost))


@pytest.fixture
def traffic(valkey: redis.Redis) -> Traffic:
    made = Traffic(valkey, seed=14)
    made.run(90)
    return made


Totals = tuple[dict[str, int], dict[str, Decimal]]


def _totals(facts: Iterable[Fact]) -> Totals:
    counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
    costs: dict[str, Decimal] = {}
    for fact in facts:
        counts.update(fact.counts())
        if fact.cost:
            costs[fact.cost[0]] = costs.get(fact.cost[0], Decimal(0)) + fact.cost[1]
    return dict(counts), costs


def _by(facts: Iterable[Fact], part: Callable[[Fact], Any]) -> dict[Any, Totals]:
    parted: dict[Any, list[Fact]] = {}
    for fact in facts:
        parted.setdefault(part(fact), []).append(fact)
    return {one: _totals(of) for one, of in parted.items()}


def _of_rows(rows: Iterable[UsageRow], part: Callable[[UsageRow], Any]) -> dict[Any, Totals]:
    parted: dict[Any, Totals] = {}
    for row in rows:
        counts, costs = parted.setdefault(part(row), (dict.fromkeys(COUNTS, 0), {}))
        for name in COUNTS:
            counts[name] += getattr(row, name)
        for currency, cost in row.costs.items():
            costs[currency] = costs.get(currency, Decimal(0)) + cost
    return parted


@pytest.mark.slow
def test_a14_all_totals_are_equal_to_the_token(traffic: Traffic, as_operator: Client) -> None:
    facts = traffic.facts
    last = max(fact.at for fact in facts)
    ledger.roll_up(last)
    whole = _totals(facts)
    assert len(whole[1]) == 2
    first_day, last_day = SINCE - timedelta(days=2), last + timedelta(days=2)

    # The ledger, and the hours that are summed of it.
    with every_tenant("the test adds up"):
        for table in (LedgerEntry, UsageRollup):
            sums = table.objects.aggregate(**{name: Sum(name) for name in ledger.TOKEN_COUNTS})
            assert sums == {name: whole[0][name] for name in ledger.TOKEN_COUNTS}
        assert UsageRollup.objects.aggregate(n=Sum("generations"))["n"] == len(facts)
        for currency, cost in whole[1].items():
            assert sum(UsageRollup.objects.filter(currency=currency).values_list("cost", flat=True)) == cost

    # By tenant, key, model and lane, by day and in all.
    def asked(bucket: Bucket, *by: Group, zone: str = "UTC") -> list[UsageRow]:
        return usage(
            tenant_ids=None,
            since=first_day,
            until=last_day,
            bucket=bucket,
            zone=ZoneInfo(zone),
            group_by=frozenset(by),
        )

    parts: dict[Group, tuple[Callable[[Fact], Any], Callable[[UsageRow], Any]]] = {
        Group.TENANT: (lambda fact: fact.tenant, lambda row: row.tenant_id),
        Group.API_KEY: (lambda fact: fact.key, lambda row: row.api_key_id),
        Group.MODEL: (lambda fact: fact.model, lambda row: row.model),
        Group.LANE: (lambda fact: fact.lane, lambda row: row.lane),
    }
    for group, (of_fact, of_row) in parts.items():
        for bucket in (Bucket.ALL, Bucket.DAY, Bucket.HOUR):
            assert _of_rows(asked(bucket, group), of_row) == _by(facts, of_fact), (group, bucket)
    for zone in ZONES:
        _check_days(facts, asked(Bucket.DAY, zone=zone), ZoneInfo(zone))

    # What counts against budgets: by the day and the month in which a generation was accepted.
    with every_tenant("the test adds up"):
        for tenant in traffic.zones:
            tokens = sum(
                fact.usage.prompt_tokens + fact.usage.completion_tokens
                for fact in facts
                if fact.tenant == tenant
            )
            for period in ("day", "week", "month"):
                windows = BudgetWindow.objects.filter(allowance__tenant=tenant, period=period)
                for of in ("entitlements", "api_keys"):
                    mine = windows.filter(**{_allowance_of(of): False}).values("id", "used").distinct()
                    assert sum(window["used"] for window in mine) == tokens, (period, of)
                assert windows.aggregate(n=Sum("reserved"))["n"] == 0
        assert not Reservation.objects.filter(settled_at=None).exists()

    _check_admin(as_operator, facts, first_day.date(), last_day.date())
    _check_api(facts, traffic.zones, first_day.replace(hour=0), last_day)
    assert ledger_check.verify(lambda finding: pytest.fail(str(finding))).holds


def _allowance_of(what: str) -> str:
    return "allowance__entitlement__isnull" if what == "entitlements" else "allowance__api_keys__isnull"


def _check_days(facts: list[Fact], rows: list[UsageRow], zone: ZoneInfo) -> None:
    """The days of a calendar hold what was settled on them."""
    days = _of_rows(rows, lambda row: row.bucket_start.astimezone(zone).date())
    assert days == _by(facts, lambda fact: fact.at.astimezone(zone).date()), zone


def _check_admin(client: Client, facts: list[Fact], first: date, last: date) -> None:
    """The page's figures and tables, and its export: of everything, and narrowed."""
    some = facts[len(facts) // 2]
    narrowed: list[tuple[dict[str, Any], Callable[[Fact], bool]]] = [
        ({}, lambda fact: True),
        ({"tenant": some.tenant}, lambda fact: fact.tenant == some.tenant),
        ({"tenant": some.tenant, "api_key": some.key}, lambda fact: fact.key == some.key),
        ({"model": some.model, "by": "lane"}, lambda fact: fact.model == some.model),
        ({"lane": some.lane, "by": "api_key"}, lambda fact: fact.lane == some.lane),
    ]
    for filters, keep in narrowed:
        expected = _totals(fact for fact in facts if keep(fact))
        for bucket in ("day", "hour"):
            query = {"first": first, "last": last, "bucket": bucket, **filters}
            report = client.get(reverse("admin:accounts_usage"), query).context["report"]
            assert (report.total.counts, report.total.costs) == expected, filters
            tokens = expected[0]["prompt_tokens"] + expected[0]["completion_tokens"]
            assert [plot.total for plot in report.plots] == [tokens, tokens]
            for table in report.tables:
                columns = [sum(_number(line.cells[n]) for line in table.lines) for n in range(len(COUNTS))]
                assert columns == list(expected[0].values()), (filters, table.name)
            assert _of_csv(client.get(reverse("admin:accounts_usage_csv"), query)) == expected, filters


def _number(cell: str) -> int:
    return int(cell.replace(",", ""))


def _of_csv(answer: Any) -> Totals:
    async def read() -> str:
        return b"".join([part async for part in answer.streaming_content]).decode()

    counts: Counter[str] = Counter(dict.fromkeys(COUNTS, 0))
    costs: dict[str, Decimal] = {}
    for row in csv.DictReader(async_to_sync(read)().splitlines()):
        counts.update({name: int(row[name]) for name in COUNTS})
        for column, cost in row.items():
            if column.startswith("cost_") and cost:
                currency = column.removeprefix("cost_")
                costs[currency] = costs.get(currency, Decimal(0)) + Decimal(cost)
    return dict(counts), costs


def _check_api(facts: list[Fact], tenants: Iterable[uuid.UUID], since: datetime, until: datetime) -> None:
    """What tenants are told of themselves, and what an operator is told of all."""
    time = {"start": int(since.timestamp()), "end": int(until.timestamp()), "bucket": "hour"}
    for tenant in tenants:
        told = _get(ApiKeyFactory(tenant=Tenant.objects.get(id=tenant)).raw, "/v1/usage", time)
        counts = {name: sum(row[name] for row in told["data"]) for name in COUNTS if name in told["data"][0]}
        costs: dict[str, Decimal] = {}
        for row in told["data"]:
            for currency, cost in row["costs"].items():
                costs[currency] = costs.get(currency, Decimal(0)) + Decimal(cost)
        expected = _totals(fact for fact in facts if fact.tenant == tenant)
        assert (counts, costs) == ({name: expected[0][name] for name in counts}, expected[1])
        assert counts.keys() >= {"generations", "prompt_tokens", "cached_tokens", "completion_tokens"}

    operator = ApiKeyFactory(scopes=["operator"]).raw
    days = {"start_time": time["start"], "end_time": time["end"], "bucket_width": "1d", "limit": 31}
    whole, paid = _totals(facts)
    for by in ([], ["project_id"], ["api_key_id"], ["model", "service_tier"]):
        page = _get(operator, "/v1/organization/usage/completions", {**days, "group_by": by})
        results = [result for bucket in page["data"] for result in bucket["results"]]
        assert not page["has_more"]
        names = {
            "num_model_requests": "generations",
            "input_tokens": "prompt_tokens",
            "input_cached_tokens": "cached_tokens",
            "output_tokens": "completion_tokens",
            "accepted_prediction_tokens": "accepted_prediction_tokens",
            "rejected_prediction_tokens": "rejected_prediction_tokens",
        }
        assert {ours: sum(one[name] for one in results) for name, ours in names.items()} == whole, by
    for by in ([], ["line_item"]):
        page = _get(operator, "/v1/organization/costs", {**days, "group_by": by})
        costs = {}
        for bucket in page["data"]:
            for result in bucket["results"]:
                amount = result["amount"]
                currency = amount["currency"].upper()
                costs[currency] = costs.get(currency, Decimal(0)) + Decimal(repr(amount["value"]))
        assert costs == paid, by


def _get(key: str, path: str, query: dict[str, Any]) -> Any:
    answer = async_to_sync(AsgiClient(key).get)(f"{path}?{urlencode(query, doseq=True)}")
    assert answer.status == 200, answer.body
    return answer.json()
