"""The books are falsified in every way, one at a time: each is found by its name, and what can be proved is mended."""

from __future__ import annotations

import io
import json
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import redis
from django.core.management import CommandError, call_command
from django.db import connection
from django.db.migrations.recorder import MigrationRecorder
from django.db.models import F
from django.utils import timezone
from prometheus_client import generate_latest
from prometheus_client.registry import CollectorRegistry

from accounts import ledger
from accounts.audit import verification
from accounts.ledger_findings import Finding, FindingCode
from accounts.models import Allowance, AuditEvent, BudgetWindow, LedgerEntry, Reservation, UsageRollup
from accounts.tenancy import every_tenant
from inference import ledger_check, tasks
from inference.cancellation import cancel
from inference.messages import CancelReason, End, EndState, Usage
from inference.models import Generation
from inference.settlement import settle
from signalbox.metrics import StoreCollector
from tests.factories import ACTOR, GenerationFactory, LanguageModelFactory
from tests.inference.doors import accepted, entitled_principal

pytestmark = pytest.mark.django_db(transaction=True)

Code = FindingCode


@dataclass(frozen=True)
class Traffic:
    """One generation that lives, one that was completed, and one that was cancelled before it ran; of one key."""

    live: uuid.UUID
    ended: uuid.UUID

    def reservation(self, generation: uuid.UUID) -> Any:
        return Reservation.objects.filter(generation_id=generation)

    @property
    def day(self) -> Any:
        """The day's window of the key's allowance."""
        of = self.reservation(self.live).get().key_allowance_id
        return BudgetWindow.objects.filter(allowance=of, period="day")


def ended(generation: uuid.UUID, tokens: int) -> None:
    usage = Usage(prompt_tokens=3, completion_tokens=tokens)
    assert settle(generation, 1, End(seq=1, epoch=1, state=EndState.COMPLETED, usage=usage))


@pytest.fixture
def traffic(valkey: redis.Redis) -> Traffic:
    model, who = LanguageModelFactory(), entitled_principal()
    live, completed, cancelled = (accepted(model, who).generation_id for _ in range(3))
    ended(completed, 4)
    cancel(cancelled, CancelReason.CLIENT_REQUESTED)
    ledger.roll_up(timezone.now())
    return Traffic(live, completed)


def verify(*, repair: bool = False) -> list[Finding]:
    found: list[Finding] = []
    report = ledger_check.verify(found.append, repair_as=ACTOR if repair else None)
    assert report.found == Counter(finding.code for finding in found)
    assert report.holds == all(finding.repaired for finding in found)
    return found


def codes(findings: list[Finding]) -> set[FindingCode]:
    return {finding.code for finding in findings}


def contents() -> dict[str, list[Any]]:
    """All that is written in the books."""
    tables: tuple[Any, ...] = (Allowance, BudgetWindow, Reservation, LedgerEntry, UsageRollup, Generation)
    return {table.__name__: list(table.objects.order_by("pk").values()) for table in tables}


def test_books_that_hold_have_no_findings_and_are_all_looked_at(traffic: Traffic) -> None:
    report = ledger_check.verify(lambda finding: pytest.fail(str(finding)), repair_as=ACTOR)
    assert report.holds
    assert report.checked == {
        "allowances": 2,
        "generations": 3,
        "reservations": 3,
        "entries": 2,
        "days of usage": 1,
    }
    assert not AuditEvent.objects.exists()


def _more(field: str, by: int = 7) -> Callable[[Any], None]:
    return lambda rows: rows.update(**{field: F(field) + by})


def _overlap(traffic: Traffic) -> None:
    [day] = traffic.day
    for hour in (0, 12):
        at = datetime(2099, 1, 1, hour, tzinfo=UTC)
        BudgetWindow.objects.create(
            allowance=day.allowance, period="day", starts_at=at, ends_at=at + timedelta(days=1)
        )


def _ghost_reservation(traffic: Traffic) -> None:
    row = traffic.reservation(traffic.live).get()
    row.generation_id = uuid.uuid4()
    row.save(force_insert=True)


def _booked(generation_id: uuid.UUID, traffic: Traffic) -> None:
    row = LedgerEntry.objects.get(generation_id=traffic.ended)
    row.generation_id = generation_id
    row.save(force_insert=True)


def _entry(traffic: Traffic) -> Any:
    return LedgerEntry.objects.filter(generation_id=traffic.ended)


#: What is falsified, what must be found of it, and what of that is left after a repair.
FALSIFIED: dict[str, tuple[Callable[[Traffic], Any], set[FindingCode], set[FindingCode]]] = {
    "live_generations": (
        lambda books: _more("live_generations", 1)(Allowance.objects.all()),
        {Code.LIVE_GENERATIONS_DIFFER},
        set(),
    ),
    "a window's reserved": (
        lambda books: _more("reserved")(books.day),
        {Code.WINDOW_RESERVED_DIFFERS},
        set(),
    ),
    "a window's used": (lambda books: _more("used")(books.day), {Code.WINDOW_USED_DIFFERS}, set()),
    "a window's used, to nothing": (
        lambda books: books.day.update(used=0),
        {Code.WINDOW_USED_DIFFERS},
        set(),
    ),
    "windows that overlap": (_overlap, {Code.WINDOWS_OVERLAP}, {Code.WINDOWS_OVERLAP}),
    "a window that is gone": (
        lambda books: books.day.delete(),
        {Code.WINDOW_MISSING},
        {Code.WINDOW_MISSING},
    ),
    "a live one's reservation is gone": (
        lambda books: books.reservation(books.live).delete(),
        {Code.LIVE_WITHOUT_RESERVATION, Code.LIVE_GENERATIONS_DIFFER, Code.WINDOW_RESERVED_DIFFERS},
        {Code.LIVE_WITHOUT_RESERVATION},
    ),
    "a live one's reservation is settled": (
        lambda books: books.reservation(books.live).update(settled_tokens=5, settled_at=timezone.now()),
        {
            Code.LIVE_BUT_SETTLED,
            Code.LIVE_GENERATIONS_DIFFER,
            Code.WINDOW_RESERVED_DIFFERS,
            Code.WINDOW_USED_DIFFERS,
        },
        {Code.LIVE_BUT_SETTLED},
    ),
    "a live one is in the ledger": (
        lambda books: _booked(books.live, books),
        {Code.LIVE_WITH_ENTRY},
        {Code.LIVE_WITH_ENTRY},
    ),
    "an ended one's reservation is gone": (
        lambda books: books.reservation(books.ended).delete(),
        {Code.ENDED_WITHOUT_RESERVATION, Code.WINDOW_USED_DIFFERS},
        {Code.ENDED_WITHOUT_RESERVATION},
    ),
    "an ended one is not settled": (
        lambda books: books.reservation(books.ended).update(settled_tokens=None, settled_at=None),
        {
            Code.ENDED_BUT_UNSETTLED,
            Code.LIVE_GENERATIONS_DIFFER,
            Code.WINDOW_RESERVED_DIFFERS,
            Code.WINDOW_USED_DIFFERS,
        },
        set(),
    ),
    "an ended one is settled with other tokens": (
        lambda books: _more("settled_tokens")(books.reservation(books.ended)),
        {Code.SETTLED_TOKENS_DIFFER, Code.WINDOW_USED_DIFFERS},
        set(),
    ),
    "an ended one is not in the ledger": (
        lambda books: _entry(books).delete(),
        {Code.ENDED_WITHOUT_ENTRY},
        {Code.ENDED_WITHOUT_ENTRY},
    ),
    "an entry has other tokens": (
        lambda books: _more("completion_tokens")(_entry(books)),
        {Code.ENTRY_DIFFERS, Code.SETTLED_TOKENS_DIFFER},
        {Code.ENTRY_DIFFERS, Code.SETTLED_TOKENS_DIFFER},
    ),
    "an entry has another key": (
        lambda books: _entry(books).update(api_key_id=uuid.uuid4()),
        {Code.ENTRY_DIFFERS},
        {Code.ENTRY_DIFFERS},
    ),
    "a generation has other tokens": (
        lambda books: _more("cached_tokens", 1)(Generation.objects.filter(id=books.ended)),
        {Code.ENTRY_DIFFERS},
        {Code.ENTRY_DIFFERS},
    ),
    "a reservation of nothing": (
        _ghost_reservation,
        {
            Code.RESERVATION_WITHOUT_GENERATION,
            Code.LIVE_GENERATIONS_DIFFER,
            Code.WINDOW_RESERVED_DIFFERS,
        },
        {Code.RESERVATION_WITHOUT_GENERATION},
    ),
    "an entry of nothing": (
        lambda books: _booked(uuid.uuid4(), books),
        {Code.ENTRY_WITHOUT_GENERATION},
        {Code.ENTRY_WITHOUT_GENERATION},
    ),
    "a sum of nothing": (
        lambda books: UsageRollup.objects.create(
            id=uuid.uuid4(),
            tenant_id=uuid.uuid4(),
            model="m",
            lane="normal",
            hour=ledger.hour_of(timezone.now()),
            generations=1,
            prompt_tokens=1,
            cached_tokens=0,
            completion_tokens=1,
        ),
        {Code.ROLLUP_DIFFERS},
        set(),
    ),
}


def test_every_kind_of_finding_is_tried() -> None:
    assert {code for _, found, _ in FALSIFIED.values() for code in found} == set(FindingCode)


@pytest.mark.parametrize("what", FALSIFIED)
def test_what_is_false_is_found_by_its_name_and_mended_where_it_can_be_proved(
    traffic: Traffic, what: str
) -> None:
    falsify, expected, left = FALSIFIED[what]
    with every_tenant("the test falsifies the books"):
        true = contents()
        falsify(traffic)
        false = contents()
    assert codes(verify()) == expected
    with every_tenant("the test looks"):
        # Sums are brought up to date before they are compared; nothing else is touched.
        assert {**contents(), "UsageRollup": []} == {**false, "UsageRollup": []}
    assert not AuditEvent.objects.exists()

    repaired = verify(repair=True)
    assert codes(repaired) == expected
    assert {finding.code for finding in repaired if not finding.repaired} == left
    assert codes(verify()) == left
    events = AuditEvent.objects.all()
    assert {event.action for event in events} <= {"ledger.repair"}
    changes = [(event.object_kind, event.object_id, event.before["finding"]) for event in events]
    assert sorted(changes) == sorted(
        (finding.subject.kind, finding.subject.id, finding.code.value)
        for finding in repaired
        if finding.repaired
    )
    assert verification.verify(from_scratch=True).fault is None
    if not left:
        with every_tenant("the test looks"):
            settled_at = {row["generation_id"]: row["settled_at"] for row in contents()["LedgerEntry"]}
            assert _comparable(contents(), settled_at) == _comparable(true, settled_at)


def _comparable(books: dict[str, list[Any]], settled_at: dict[uuid.UUID, datetime]) -> dict[str, Any]:
    """Without the time at which a reservation was settled: what is repaired has that of the ledger's entry."""
    rows = [
        {**row, "settled_at": settled_at[row["generation_id"]] if row["settled_at"] else None}
        for row in books["Reservation"]
    ]
    return {**books, "Reservation": rows}


def test_the_rest_of_the_books_is_compared_whatever_was_found_first(traffic: Traffic) -> None:
    with every_tenant("the test falsifies the books"):
        traffic.day.update(used=1000)
        _entry(traffic).update(cached_tokens=2)
        traffic.reservation(traffic.live).delete()
    found = codes(verify(repair=True))
    assert {Code.WINDOW_USED_DIFFERS, Code.ENTRY_DIFFERS, Code.LIVE_WITHOUT_RESERVATION} <= found


def test_nothing_is_asked_of_generations_that_are_older_than_reservations(valkey: redis.Redis) -> None:
    running, done = GenerationFactory(state="running"), GenerationFactory(state="running")
    ended(done.id, 4)
    assert codes(verify()) == {Code.LIVE_WITHOUT_RESERVATION, Code.ENDED_WITHOUT_RESERVATION}
    since = MigrationRecorder.Migration.objects.get(app="accounts", name="0007_allowances_and_budgets")
    with every_tenant("the test lets time pass"):
        Generation.objects.filter(id__in=[running.id, done.id]).update(
            created_at=since.applied - timedelta(seconds=1)
        )
    assert verify() == []


def test_chunks_follow_one_another_without_a_gap(traffic: Traffic, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_check, "CHUNK", 1)
    report = ledger_check.verify(lambda finding: pytest.fail(str(finding)))
    assert (report.checked["generations"], report.checked["reservations"]) == (3, 3)


def test_traffic_that_goes_on_is_no_finding(valkey: redis.Redis) -> None:
    model, people = LanguageModelFactory(), [entitled_principal() for _ in range(3)]
    failures: list[BaseException] = []
    checked_twice = threading.Event()

    def use(number: int) -> None:
        try:
            for round_ in range(12):
                if round_ == 11:  # the checks may have waited for all the others
                    assert checked_twice.wait(60)
                generation = accepted(model, people[number]).generation_id
                if round_ % 3:
                    ended(generation, round_)
                else:
                    cancel(generation, CancelReason.CLIENT_REQUESTED)
        except BaseException as failure:
            failures.append(failure)
            raise
        finally:
            connection.close()

    threads = [threading.Thread(target=use, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    found: list[Finding] = []
    checks = 0
    while any(thread.is_alive() for thread in threads):
        found += verify()
        checks += 1
        if checks > 1:
            checked_twice.set()
    for thread in threads:
        thread.join()
    assert failures == []
    assert found == []
    assert checks > 1
    assert verify() == []


def run(*arguments: str) -> tuple[str, str]:
    out, err = io.StringIO(), io.StringIO()
    call_command("ledger", *arguments, stdout=out, stderr=err)
    return out.getvalue(), err.getvalue()


def test_the_command_says_what_is_wrong_and_fails_until_it_is_not(traffic: Traffic) -> None:
    said, told = run("verify")
    assert said == ""
    assert "The books hold: looked at 2 allowances, 3 generations" in told
    with every_tenant("the test falsifies the books"):
        traffic.day.update(used=1000)
    out = io.StringIO()
    with pytest.raises(CommandError, match="1 × window_used_differs"):
        call_command("ledger", "verify", stdout=out, stderr=io.StringIO())
    assert "window_used_differs: budget_window " in out.getvalue()
    assert "has used 1000; should have used 7" in out.getvalue()
    said, told = run("verify", "--repair", "--json")
    line = json.loads(said)
    assert (line["code"], line["found"], line["expected"], line["repaired"]) == (
        "window_used_differs",
        {"used": 1000},
        {"used": 7},
        True,
    )
    assert "1 findings were repaired" in told
    event = AuditEvent.objects.get()
    assert event.actor_name == "manage.py ledger verify --repair"
    assert (event.before["used"], event.after["used"]) == (1000, 7)


def test_the_command_makes_all_sums_anew(traffic: Traffic) -> None:
    with every_tenant("the test falsifies the books"):
        UsageRollup.objects.update(generations=9)
    assert run("rebuild")[0] == "Made 1 hourly sums anew.\n"
    with every_tenant("the test looks"):
        assert UsageRollup.objects.get().generations == 2


def test_the_task_tells_the_log_and_the_metrics_and_repairs_nothing(
    traffic: Traffic, caplog: pytest.LogCaptureFixture
) -> None:
    assert tasks.verify_ledger() == 0
    assert _series()['signalbox_ledger_findings{code="window_used_differs"}'] == 0
    assert _series()["signalbox_ledger_last_check_timestamp_seconds"] > 1e9
    with every_tenant("the test falsifies the books"):
        traffic.day.update(used=1000)
    assert tasks.verify_ledger() == 1
    assert _series()['signalbox_ledger_findings{code="window_used_differs"}'] == 1
    assert "ledger_does_not_hold" in caplog.text
    with every_tenant("the test looks"):
        assert traffic.day.get().used == 1000


def _series() -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(StoreCollector())
    lines = generate_latest(registry).decode().splitlines()
    return {
        name: float(value)
        for name, value in (line.rsplit(" ", 1) for line in lines if line.startswith("signalbox_ledger"))
    }
