from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pytest

from accounts import ledger, rollup_check
from accounts.ledger_findings import Finding, FindingCode
from accounts.models import AuditEvent, LedgerEntry, Price, UsageRollup
from accounts.tenancy import every_tenant
from tests.factories import ACTOR

pytestmark = pytest.mark.django_db

NOON = datetime(2026, 3, 1, 12, 30, tzinfo=UTC)
TODAY = NOON.replace(hour=0, minute=0)
DAY = timedelta(days=1)


@pytest.fixture(autouse=True)
def _every_tenant() -> Iterator[None]:
    with every_tenant("test"):
        yield


def settle(at: datetime = NOON, *, tenant: int = 1) -> LedgerEntry:
    return ledger.settle(
        generation_id=uuid.uuid4(),
        tenant_id=uuid.UUID(int=tenant),
        api_key_id=None,
        user_id=None,
        model="m",
        lane="normal",
        prompt_tokens=10,
        cached_tokens=4,
        completion_tokens=3,
        accepted_prediction_tokens=1,
        rejected_prediction_tokens=2,
        at=at,
    )


def check(day: datetime = TODAY, *, repair: bool = False) -> list[Finding]:
    return rollup_check.check(day, day + DAY, now=NOON, repair_as=ACTOR if repair else None)


@pytest.fixture
def _summed() -> None:
    Price.objects.create(
        model="m", currency="EUR", prompt=1, cached=1, completion=1, valid_from=NOON - 2 * DAY
    )
    for back in (0, 1, 3, 30):
        settle(NOON - timedelta(hours=back))
        settle(NOON - timedelta(hours=back), tenant=2)
    ledger.roll_up(NOON)


@pytest.mark.usefixtures("_summed")
def test_sums_that_are_right_are_no_finding() -> None:
    assert check() == check(TODAY - DAY) == check(TODAY - 9 * DAY) == []


@pytest.mark.usefixtures("_summed")
@pytest.mark.parametrize("figure", ["generations", *ledger.TOKEN_COUNTS, "cost"])
def test_each_figure_of_a_sum_is_compared_and_mended(figure: str) -> None:
    wrong = UsageRollup.objects.filter(hour=NOON.replace(hour=9, minute=0), tenant_id=uuid.UUID(int=1))
    right = list(UsageRollup.objects.order_by("id").values())
    wrong.update(**{figure: 77})
    [finding] = check()
    assert finding.code is FindingCode.ROLLUP_DIFFERS
    assert finding.subject.id == str(wrong.get().id)
    assert finding.found.keys() == finding.expected.keys() == {figure}
    assert finding.tenant_id == uuid.UUID(int=1)
    assert not finding.repaired
    assert check(TODAY - DAY) == []
    [mended] = check(repair=True)
    assert mended.repaired
    assert check() == []
    assert list(UsageRollup.objects.order_by("id").values()) == right
    event = AuditEvent.objects.get()
    assert (event.action, event.object_kind, event.tenant_id) == (
        "ledger.repair",
        "usage_rollup",
        uuid.UUID(int=1),
    )
    assert str((event.before or {})[figure]).startswith("77")


@pytest.mark.usefixtures("_summed")
def test_a_sum_that_is_gone_and_one_of_nothing_are_findings() -> None:
    gone = UsageRollup.objects.get(hour=NOON.replace(hour=9, minute=0), tenant_id=uuid.UUID(int=1))
    gone.delete()
    extra = UsageRollup.objects.filter(hour=NOON.replace(hour=9, minute=0)).get()
    extra.id = uuid.uuid4()
    extra.save(force_insert=True)
    found = {
        finding.subject.id: (finding.found["generations"], finding.expected["generations"])
        for finding in check()
    }
    assert found == {
        str(ledger_id): figures for ledger_id, figures in ((extra.id, (1, 0)), (_id_of(gone), (0, 1)))
    }
    check(repair=True)
    assert check() == []


def _id_of(gone: UsageRollup) -> uuid.UUID:
    [same] = [
        row.id
        for row in ledger.hourly_sums(TODAY, TODAY + DAY)
        if (row.hour, row.tenant_id) == (gone.hour, gone.tenant_id)
    ]
    return same


def test_what_is_settled_between_the_sums_and_the_check_is_no_finding() -> None:
    settle()
    ledger.roll_up(NOON)
    settle()
    assert check() == []
    assert UsageRollup.objects.get().generations == 2


def test_an_hour_that_no_task_sums_any_more_is_a_finding() -> None:
    settle()
    ledger.roll_up(NOON)
    settle(NOON - timedelta(hours=5))
    assert [finding.expected["generations"] for finding in check()] == [1]


def test_large_amounts_are_no_finding_for_how_sqlite_keeps_them() -> None:
    entry = settle()
    LedgerEntry.objects.filter(pk=entry.pk).update(cost=Decimal("99999999.123456789"), currency="EUR")
    ledger.roll_up(NOON)
    assert check() == []
