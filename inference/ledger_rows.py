"""Whether a generation, its reservation and its ledger entry tell the same story.

The rule is a pure function of the three rows. They are written in one transaction each time, so that whoever holds the
generation's row sees all of it or nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet

from accounts import audit, counters, ledger, reservations
from accounts.audit import ObjectRef
from accounts.ledger_findings import Finding, FindingCode
from accounts.models import LedgerEntry, Reservation
from accounts.principal import Actor
from inference.models import Generation
from inference.models.generation import LIVE_STATES

#: What a generation and its entry both hold: the counts, and whose they are.
_SHARED: Final = (*ledger.TOKEN_COUNTS, "tenant_id", "api_key_id", "user_id")
#: What a generation is compared by.
FIELDS: Final = ("state", "lane", "created_at", *_SHARED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """What is written of one generation."""

    generation: Generation
    reservation: Reservation | None
    entry: LedgerEntry | None


def disagreements(books: Books, *, reserved_since: datetime) -> list[Finding]:
    """In what the books of one generation disagree. Pure.

    What was accepted before ``reserved_since`` needs no reservation: there were none yet.
    """
    ended = books.generation.state not in LIVE_STATES
    excused = books.reservation is None and books.generation.created_at < reserved_since
    return list(_of_ended(books, excused) if ended else _of_live(books, excused))


def _of_live(books: Books, excused: bool) -> Iterator[Finding]:
    if books.entry is not None:
        yield _finding(books, FindingCode.LIVE_WITH_ENTRY, {"entry_tokens": _used(books.entry)})
    if books.reservation is None:
        if not excused:
            yield _finding(books, FindingCode.LIVE_WITHOUT_RESERVATION)
    elif books.reservation.settled_at is not None:
        tokens = books.reservation.settled_tokens
        yield _finding(
            books, FindingCode.LIVE_BUT_SETTLED, {"settled_tokens": tokens}, {"settled_tokens": None}
        )


def _of_ended(books: Books, excused: bool) -> Iterator[Finding]:
    entry, reservation = books.entry, books.reservation
    if entry is None:
        yield _finding(books, FindingCode.ENDED_WITHOUT_ENTRY)
    else:
        has, should_have = _differing(books.generation, entry)
        if has:
            yield _finding(books, FindingCode.ENTRY_DIFFERS, has, should_have)
    expected = {} if entry is None else {"settled_tokens": _used(entry)}
    if reservation is None:
        if not excused:
            yield _finding(books, FindingCode.ENDED_WITHOUT_RESERVATION)
    elif reservation.settled_at is None:
        yield _finding(books, FindingCode.ENDED_BUT_UNSETTLED, {"settled_tokens": None}, expected)
    elif entry is not None and reservation.settled_tokens != _used(entry):
        found = {"settled_tokens": reservation.settled_tokens}
        yield _finding(books, FindingCode.SETTLED_TOKENS_DIFFER, found, expected)


def check(
    generations: Sequence[Generation], *, reserved_since: datetime, repair_as: Actor | None = None
) -> list[Finding]:
    """In what the books of these generations disagree; ``repair_as`` sets right what follows from the ledger.

    What seems wrong is read again with the generation's row locked, as its settlement does: only what is wrong then is
    a finding. Needs a scope that sees their tenants.
    """
    ids = [generation.id for generation in generations]
    held = Reservation.objects.in_bulk(ids)
    entries = LedgerEntry.objects.in_bulk(ids)
    findings = []
    for generation in generations:
        books = Books(
            generation=generation, reservation=held.get(generation.id), entry=entries.get(generation.id)
        )
        if disagreements(books, reserved_since=reserved_since):
            findings += _confirmed(generation.id, reserved_since, repair_as)
    return findings


def without_generation(
    rows: QuerySet[Any], ids: Sequence[UUID], code: FindingCode, kind: str
) -> list[Finding]:
    """Of the reservations or entries with these ids those whose generation is unknown.

    They were read before this: whoever writes one has written the generation with it, or before.
    """
    known = set(Generation.objects.filter(id__in=ids).values_list("id", flat=True))
    ghosts = [one for one in ids if one not in known]
    tenants = dict(rows.filter(pk__in=ghosts).values_list("pk", "tenant_id")) if ghosts else {}
    return [
        Finding(
            code=code,
            subject=ObjectRef(kind, str(one), f"gen_{one.hex}"),
            tenant_id=tenants.get(one),
            found={},
            expected={},
        )
        for one in ghosts
    ]


def _confirmed(generation_id: UUID, reserved_since: datetime, repair_as: Actor | None) -> list[Finding]:
    with transaction.atomic():
        locked = Generation.objects.select_for_update(of=("self",), no_key=True)
        books = Books(
            generation=locked.only(*FIELDS).get(id=generation_id),
            reservation=Reservation.objects.filter(generation_id=generation_id).first(),
            entry=LedgerEntry.objects.filter(generation_id=generation_id).first(),
        )
        findings = disagreements(books, reserved_since=reserved_since)
        if repair_as is not None:
            findings = [replace(one, repaired=_repair(one.code, books)) for one in findings]
            audit.record_all(repair_as, [counters.repair_of(one) for one in findings if one.repaired])
    return findings


def _repair(code: FindingCode, books: Books) -> bool:
    """Settle the reservation as the ledger says, where the generation says the same. Nothing missing is invented."""
    entry, reservation = books.entry, books.reservation
    if entry is None or reservation is None or _differing(books.generation, entry)[0]:
        return False
    match code:
        case FindingCode.ENDED_BUT_UNSETTLED:
            return reservations.settle(books.generation.id, _used(entry), entry.settled_at) is not None
        case FindingCode.SETTLED_TOKENS_DIFFER:
            counters.correct(reservation, _used(entry))
            return True
        case _:
            return False


def _differing(generation: Generation, entry: LedgerEntry) -> tuple[dict[str, Any], dict[str, Any]]:
    """Fields in which an entry is not its generation's: what it has, and what the generation has."""
    pairs = {name: (getattr(entry, name), getattr(generation, name)) for name in _SHARED}
    pairs["lane"] = (entry.lane, generation.lane_id)
    differing = {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}
    return _column(differing.items(), 0), _column(differing.items(), 1)


def _column(pairs: Iterable[tuple[str, tuple[Any, Any]]], of: int) -> dict[str, Any]:
    return {name: pair[of] for name, pair in pairs}


def _used(entry: LedgerEntry) -> int:
    """What the entry's generation took of its budgets."""
    return entry.prompt_tokens + entry.completion_tokens


def _finding(
    books: Books,
    code: FindingCode,
    found: dict[str, Any] | None = None,
    expected: dict[str, Any] | None = None,
) -> Finding:
    generation = books.generation
    return Finding(
        code=code,
        subject=ObjectRef("generation", str(generation.id), f"gen_{generation.id.hex}"),
        tenant_id=generation.tenant_id,
        found={"state": str(generation.state), **(found or {})},
        expected=expected or {},
    )
