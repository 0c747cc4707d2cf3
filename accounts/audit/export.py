"""Exports: records with their proofs, for somebody who does not trust us.

An export is JSON lines (``docs/audit-export.md``). The script ``offline/verify_export.py`` checks it without Signalbox.
Every event of the time that was asked for has its place in it: shown, or as a bare link where it is not the asker's to
see. So the chain can be followed through the file, up to signed checkpoints.
"""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import datetime

import structlog
from asgiref.sync import sync_to_async
from django.db import transaction
from django.utils import timezone

from accounts.audit import checkpoints, lines, stored
from accounts.audit.canonical import content_hash, utc_text
from accounts.audit.checkpoints import CheckpointRefused
from accounts.audit.lines import Lines, Record
from accounts.audit.recording import ObjectRef, record
from accounts.audit.selection import Selection
from accounts.audit.signing_keys import SigningKeyMissing
from accounts.audit.stored import Stored
from accounts.models import AuditCheckpoint, AuditHead, AuditPersonalValue, AuditSigningKey
from accounts.principal import Actor

_log = structlog.get_logger(__name__)

__all__ = ["Export", "ExportRefused", "Selection", "begin", "pages", "pages_async", "records"]


class ExportRefused(Exception):
    """There is nothing to export. The message says why."""


@dataclass(frozen=True, slots=True)
class Export:
    """An export that is recorded and not written yet: events ``first`` to ``last``, those after ``shown`` as links."""

    id: str
    at: datetime
    selection: Selection
    with_personal: bool
    #: The event that records it.
    event: int
    first: int
    shown: int
    last: int
    #: The chain's hash before the first event.
    previous: str

    @property
    def total(self) -> int:
        """How many events it goes through, shown or not."""
        return self.last - self.first + 1

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
    first = _first(selection)
    now, export_id = timezone.now(), uuid.uuid4().hex
    with transaction.atomic():
        event = record(
            actor,
            "audit.export",
            ObjectRef("audit_export", export_id),
            None,
            _asked(selection, with_personal),
            tenant_id=selection.tenant_id,
        )
    _sign(export_id)
    head = AuditHead.objects.get(id=1).sequence
    shown = min(stored.last_before(selection.last_at) or 0, head) if selection.last_at else head
    return Export(
        id=export_id,
        at=now,
        selection=selection,
        with_personal=with_personal,
        event=event.sequence,
        first=first,
        shown=shown,
        last=head if shown == head else _next_checkpoint(shown, head),
        previous=stored.hash_before(first),
    )


def pages(export: Export, advance: Callable[[int], object] = lambda events: None) -> Iterator[bytes]:
    """The export's lines, some hundred at a time; ``advance`` is told of each piece how many events it went through.

    Needs the memory of a page, and holds no transaction while its reader waits. Raises ``ChainBroken`` and
    ``ArchiveDamaged``: what was read until then has no last line, and is refused by whoever checks it.
    """
    known = list(AuditSigningKey.objects.order_by("created_at", "id"))
    file = _File(export, [key.id for key in known])
    yield file.beginning(known)
    for page in stored.pages(export.first, export.shown, export.selection):
        yield file.page(page)
        advance(len(page))
    for page in stored.pages(export.shown + 1, export.last, None):
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
            event=export.event if export.first <= export.event <= export.shown else None,
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
        self._hash = page[-1].hash
        return self._written(written)

    def ending(self) -> bytes:
        return self._lines.end(sequence=self._export.last, chain_hash=self._hash)

    def _shows(self, event: Stored) -> bool:
        export = self._export
        if event.sequence > export.shown:
            return False
        return (
            export.selection.is_whole
            or event.sequence == export.event
            or bool(event.leaves)
            or export.selection.shows_event(event.content)
        )

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


def _first(selection: Selection) -> int:
    """The first event of the selection's time."""
    first = stored.first_at_or_after(selection.first_at) if selection.first_at else 1
    if first is not None and not selection.is_whole:
        # Past an event of the first format the chain cannot be followed without its content, which would be shown.
        first = max(first, stored.last_of_first_format() + 1)
    until = selection.last_at
    if first is None or (until and until <= timezone.now() and first > (stored.last_before(until) or 0)):
        raise ExportRefused("Nothing that can be shown was recorded in that time. Choose another.")
    return first


def _sign(export_id: str) -> None:
    """Have the head signed, if it can be here: else the export is proved up to the last checkpoint, and says so."""
    try:
        checkpoints.make(timezone.now())
    except (CheckpointRefused, SigningKeyMissing) as error:
        _log.warning("audit_export_without_new_checkpoint", export=export_id, reason=str(error))


def _next_checkpoint(shown: int, head: int) -> int:
    """The first event from ``shown`` on that a checkpoint is of; without one, the head."""
    signed = AuditCheckpoint.objects.filter(sequence__range=(shown, head)).order_by("sequence").first()
    return signed.sequence if signed else head
