"""Exports: records with their proofs, for somebody who does not trust us.

An export is JSON lines (``docs/audit-export.md``). The script ``offline/verify_export.py`` checks it without Signalbox.
Every event of the time that was asked for has its place in it: shown, or as a bare link where it is not the asker's to
see. So the chain can be followed through the file, up to signed checkpoints.

What an export says of itself (from which event to which, of whom) is in the chain too, in the event that records it.
That event is in every export: nobody can cut off what comes first or last, and name the rest an export of that.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

import structlog
from asgiref.sync import sync_to_async
from django.db import transaction
from django.db.models import Max
from django.utils import timezone

from accounts.audit import checkpoints, lines, stored
from accounts.audit.canonical import content_hash, utc_text
from accounts.audit.checkpoints import CheckpointRefused
from accounts.audit.lines import Lines, Record
from accounts.audit.recording import ObjectRef, record
from accounts.audit.selection import Selection
from accounts.audit.signing_keys import SigningKeyMissing
from accounts.audit.stored import Stored
from accounts.models import AuditCheckpoint, AuditEvent, AuditHead, AuditPersonalValue, AuditSigningKey
from accounts.principal import Actor

_log = structlog.get_logger(__name__)

__all__ = ["Export", "ExportRefused", "Selection", "begin", "pages", "pages_async", "records"]


class ExportRefused(Exception):
    """There is nothing to export. The message says why."""


@dataclass(frozen=True, slots=True)
class Export:
    """An export that is recorded and not written yet, of the events ``first`` to ``last``.

    Behind those it goes on, with links, to the next checkpoint (``reaches``); and, if that is before the event that
    records the export, from that event (``event``) to its next checkpoint (``end``).
    """

    id: str
    at: datetime
    selection: Selection
    with_personal: bool
    #: The event that records it, and the chain's hash before that.
    event: int
    before_event: str
    first: int
    last: int
    reaches: int
    end: int
    #: The chain's hash before the first event.
    previous: str
    #: Whether a checkpoint proves the event that records it: without, nothing proves what the export says of itself.
    is_signed: bool

    @property
    def has_gap(self) -> bool:
        """Whether events are left out between those that were asked for and the one that records it."""
        return self.reaches < self.event - 1

    @property
    def total(self) -> int:
        """How many events it goes through, shown or not."""
        behind_gap = self.end - self.event + 1 if self.has_gap else 0
        return self.reaches - self.first + 1 + behind_gap

    @property
    def file_name(self) -> str:
        """What a file of it may be called."""
        return f"signalbox-audit-{self.first}-{self.last}.jsonl"


def begin(selection: Selection, *, with_personal: bool, actor: Actor) -> Export:
    """Record that ``actor`` exports ``selection``, sign the chain's head, and settle what the export holds.

    ``with_personal``: with the names and addresses that still stand beside the events. The event is committed when this
    returns: the lines may be read then (``pages``). Raises ``ExportRefused``, ``ChainBroken``, ``ArchiveDamaged``, and
    what signing raises.
    """
    first, last = _asked_for(selection)
    export_id = uuid.uuid4().hex
    with transaction.atomic():
        if last is not None and selection.last_at is not None:
            last = _with_those_in_flight(last, selection.last_at)
        event = record(
            actor,
            "audit.export",
            ObjectRef("audit_export", export_id),
            None,
            {**_asked(selection, with_personal), "first": first, "last": last},
            tenant_id=selection.tenant_id,
        )
    _sign(export_id)
    own, last = event.sequence, last or event.sequence
    behind, signed = _next_checkpoint(last), _next_checkpoint(own)
    end = signed or own
    return Export(
        id=export_id,
        at=event.at,
        selection=selection,
        with_personal=with_personal,
        event=own,
        before_event=event.previous_hash,
        first=first,
        last=last,
        # A gap of no event is none.
        reaches=behind if behind is not None and behind < own - 1 else end,
        end=end,
        previous=stored.hash_before(first),
        is_signed=signed is not None,
    )


def pages(export: Export, advance: Callable[[int], object] = lambda events: None) -> Iterator[bytes]:
    """The export's lines, some hundred at a time; ``advance`` is told of each piece how many events it went through.

    Needs the memory of a page, and holds no transaction while its reader waits. Raises ``ChainBroken`` and
    ``ArchiveDamaged``: what was read until then has no last line, and is refused by whoever checks it.
    """
    known = list(AuditSigningKey.objects.order_by("created_at", "id"))
    file = _File(export, [key.id for key in known])
    yield file.beginning(known)
    for page in stored.pages(export.first, export.last, export.selection):
        yield file.page(page)
        advance(len(page))
    for page in stored.pages(export.last + 1, export.reaches, None):
        yield file.page(page)
        advance(len(page))
    if export.has_gap:
        yield file.gap()
        for page in stored.pages(export.event, export.end, None):
            yield file.page(page)
            advance(len(page))
    yield file.ending()


async def pages_async(export: Export) -> AsyncIterator[bytes]:
    """As ``pages``, for an answer of the web server: each page is read in a thread, when the last one was taken."""
    left = pages(export)
    next_page = sync_to_async(lambda: next(left, None))
    while (page := await next_page()) is not None:
        yield page


def records(selection: Selection, *, with_personal: bool, actor: Actor) -> Iterator[bytes]:
    """Begin an export, and its lines; as ``begin`` and ``pages``. Nothing is recorded before the first is asked for."""
    yield from pages(begin(selection, with_personal=with_personal, actor=actor))


class _File:
    """The lines of one export, as they are written from the first to the last."""

    def __init__(self, export: Export, keys: list[str]) -> None:
        self._export = export
        self._keys = keys
        self._lines = Lines()
        self._sequence = export.first - 1
        self._hash = export.previous

    def beginning(self, keys: list[AuditSigningKey]) -> bytes:
        export = self._export
        header = lines.header(
            kind="export",
            first=export.first,
            last=export.last,
            previous=export.previous,
            export_id=export.id,
            at=utc_text(export.at),
            event=export.event,
            selection=_asked(export.selection, export.with_personal),
        )
        at_start = self._checkpoints(export.first - 1, export.first - 1)
        return self._written([header, *map(lines.key, keys), *map(lines.checkpoint, at_start)])

    def page(self, page: list[Stored]) -> bytes:
        shown = {one.sequence for one in page if self._shows(one)}
        personal = _personal(shown) if self._export.with_personal else {}
        signed: dict[int, list[AuditCheckpoint]] = {}
        for one in self._checkpoints(page[0].sequence, page[-1].sequence):
            signed.setdefault(one.sequence, []).append(one)
        written: list[Record] = []
        for event in page:
            if event.sequence in shown:
                written.append(lines.event(event.content, event.hash, personal.get(event.sequence, {})))
                written += _assignments(event)
            else:
                written.append(lines.link(event.sequence, content_hash(event.content)))
            written += map(lines.checkpoint, signed.get(event.sequence, []))
        self._sequence, self._hash = page[-1].sequence, page[-1].hash
        return self._written(written)

    def gap(self) -> bytes:
        export = self._export
        return self._written([lines.gap(export.event - 1, export.before_event)])

    def ending(self) -> bytes:
        return self._lines.end(sequence=self._sequence, chain_hash=self._hash)

    def _shows(self, event: Stored) -> bool:
        export = self._export
        if event.sequence == export.event:
            return True
        if event.sequence > export.last:
            return False
        return export.selection.is_whole or bool(event.leaves) or export.selection.shows_event(event.content)

    def _checkpoints(self, first: int, last: int) -> list[AuditCheckpoint]:
        found = AuditCheckpoint.objects.filter(sequence__range=(first, last), key_id__in=self._keys)
        return list(found.order_by("sequence", "at"))

    def _written(self, records_of_page: list[Record]) -> bytes:
        return b"".join(map(self._lines.line, records_of_page))


def _assignments(event: Stored) -> Iterator[Record]:
    for leaf in event.leaves:
        yield lines.assignment(
            leaf.content,
            batch=event.sequence,
            index=leaf.index,
            size=event.content["after"]["count"],
            path=leaf.path,
        )


def _personal(sequences: set[int]) -> dict[int, dict[str, AuditPersonalValue]]:
    found: dict[int, dict[str, AuditPersonalValue]] = {}
    for value in AuditPersonalValue.objects.filter(event_id__in=sequences):
        found.setdefault(value.event_id, {})[value.path] = value
    return found


def _asked(selection: Selection, with_personal: bool) -> dict[str, str | bool | None]:
    return {**selection.as_fields(), "personal": with_personal}


def _asked_for(selection: Selection) -> tuple[int, int | None]:
    """The first and the last event of the selection's time; no last one: that is up to the export itself."""
    first = stored.first_at_or_after(selection.first_at) if selection.first_at else 1
    if first is not None and not selection.is_whole:
        # Past an event of the first format the chain cannot be followed without its content, which would be shown.
        first = max(first, stored.last_of_first_format() + 1)
    until = selection.last_at
    last = (stored.last_before(until) or 0) if until and until <= timezone.now() else None
    if first is None or (last is not None and first > last):
        raise ExportRefused("Nothing that can be shown was recorded in that time. Choose another.")
    return first, last


def _with_those_in_flight(last: int, until: datetime) -> int:
    """The last event before ``until``, ``last`` or one that was not committed yet when that was looked up.

    Takes the chain's lock, behind which nothing is in flight.
    """
    AuditHead.objects.select_for_update(no_key=True).get(id=1)
    late = AuditEvent.objects.filter(sequence__gt=last, at__lt=until).aggregate(last=Max("sequence"))["last"]
    return max(last, late or 0)


def _sign(export_id: str) -> None:
    """Have the head signed, if it can be here: else nothing proves the export's own event, and the file says so."""
    try:
        checkpoints.make(timezone.now())
    except (CheckpointRefused, SigningKeyMissing) as error:
        _log.warning("audit_export_without_new_checkpoint", export=export_id, reason=str(error))


def _next_checkpoint(sequence: int) -> int | None:
    """The first event from ``sequence`` on that a checkpoint is of whose key is known."""
    known = AuditSigningKey.objects.values("id")
    signed = (
        AuditCheckpoint.objects.filter(sequence__gte=sequence, key_id__in=known).order_by("sequence").first()
    )
    return signed.sequence if signed else None
