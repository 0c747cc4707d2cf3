"""Does the chain vouch for the archives that there are?

Whoever can insert a row could make one up, and so have events of theirs taken for archived. So an event of the chain
(``audit.archive``) tells of each archive, and with it of all that were made before it: by one hash over their rows. The
event of the newest archive is behind all that is archived, and so always in the database: from it every row can be told
to be genuine, without a look at one file. (Events without that hash vouch for their own archive alone.)
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from accounts.audit import chain_ends
from accounts.audit.canonical import GENESIS_HASH, content_hash, link_hash
from accounts.audit.chain_rows import EVENT_FORM, number_of
from accounts.audit.contents import EventRow
from accounts.audit.event_checks import holds
from accounts.audit.faults import Broken, FaultKind, FaultReason
from accounts.audit.row_pages import columns_of, page
from accounts.audit.written_forms import WrittenForm
from accounts.models import AuditArchive, AuditEvent

#: The action of the events that vouch for archives, and the fields of an archive that they tell.
ACTION: Final = "audit.archive"
VOUCHED: Final = (
    "first_sequence",
    "last_sequence",
    "previous_hash",
    "last_hash",
    "assignments",
    "file_name",
    "file_sha256",
    "file_bytes",
)
#: The field of such an event that tells of all archives up to its own.
_ALL: Final = "archives_hash"
_ARCHIVE: Final = WrittenForm(AuditArchive, (*VOUCHED, "created_at"))
_PAGE: Final = 1000


def rows() -> list[AuditArchive]:
    """The archives, in their order. Raises ``Broken`` unless they cover the chain's beginning without a gap."""
    archives: list[AuditArchive] = []
    in_order = AuditArchive.objects.order_by("first_sequence")
    while True:
        found, error = page(_ARCHIVE, in_order, _PAGE, len(archives))
        archives += [
            AuditArchive(**dict(zip((*VOUCHED, "created_at"), values, strict=True))) for values in found
        ]
        if error is not None:
            _check_order(archives)
            first, last, name = columns_of(
                in_order, len(archives), "first_sequence", "last_sequence", "file_name"
            )
            raise Broken(
                number_of(first),
                FaultKind.ARCHIVE,
                FaultReason.ALTERED,
                f"The archive of events {first} to {last} ({name}) was changed: its row cannot be read ({error}).",
                record_id=str(name),
            ) from error
        if len(found) < _PAGE:
            _check_order(archives)
            return archives


def hashed_fields(earlier: Sequence[AuditArchive], made: AuditArchive) -> dict[str, Any]:
    """What the event of the archive ``made`` says, all ``earlier`` ones being vouched for."""
    return _fields(made) | {_ALL: _hashes([*earlier, made])[-1]}


def vouched_for() -> list[AuditArchive]:
    """The archives, in their order. Raises ``Broken`` at one that no event of the database vouches for."""
    archives = rows()
    vouching = Vouching(archives)
    vouching.hear_database(chain_ends.read_head()[0])
    vouching.require()
    return archives


class Vouching:
    """What the chain says of ``archives``: all there are, in their order."""

    def __init__(self, archives: Sequence[AuditArchive]) -> None:
        self._archives = archives
        self._places = {archive.first_sequence: place for place, archive in enumerate(archives)}
        self._vouched: set[int] = set()
        self._hashes = _hashes(archives)
        #: The hashes over all archives up to one that were told, by that one's place.
        self._told: dict[int, str] = {}
        self._last_unread = -1

    def hear_database(self, head: int) -> None:
        """As ``hear``, for the events of the database, up to ``head``."""
        for sequence, said in _events(head):
            self.hear(sequence, said)

    def hear(self, sequence: int, said: Any) -> None:
        """Event ``sequence`` tells ``said`` of an archive. Raises ``Broken`` where the archive is another one."""
        first = said.get("first_sequence") if isinstance(said, dict) else None
        place = self._places.get(first) if isinstance(first, int) else None
        if place is None or sequence <= self._archives[place].last_sequence:
            return
        for name, value in _fields(self._archives[place]).items():
            if said.get(name) != value:
                raise bad_archive(
                    self._archives[place],
                    FaultReason.ALTERED,
                    f"has another {name} than the chain says in event {sequence}.",
                )
        self._vouched.add(place)
        if _ALL in said:
            self._told[place] = said[_ALL]

    def pass_by(self, archive: AuditArchive) -> None:
        """The archive's file is not read: what its events tell is not known."""
        self._last_unread = self._places[archive.first_sequence]

    def require(self) -> list[AuditArchive]:
        """Raise ``Broken`` at the first archive that the chain does not vouch for.

        Those that are returned are told of by no event that was heard, and may be by one in a file that is not read.
        """
        for place, told in self._told.items():
            before = range(place + 1)
            if told != self._hashes[place]:
                first = next((one for one in before if one not in self._vouched), place)
                raise bad_archive(
                    self._archives[first],
                    FaultReason.UNVOUCHED,
                    f"is not among those that the chain tells of with {self._archives[place].file_name}: it was put "
                    "there, or changed.",
                )
            self._vouched.update(before)
        unheard = [place for place in range(len(self._archives)) if place not in self._vouched]
        for place in unheard:
            # Its event is behind it: in the database, or in a later archive.
            if place >= self._last_unread:
                raise bad_archive(
                    self._archives[place], FaultReason.UNVOUCHED, "is told of by no event of the chain."
                )
        return [self._archives[place] for place in unheard]


def bad_archive(archive: AuditArchive, reason: FaultReason, what: str) -> Broken:
    """A fault of an archive, at the first of its events."""
    return Broken(
        archive.first_sequence,
        FaultKind.ARCHIVE,
        reason,
        f"The archive of {archive} ({archive.file_name}) {what}",
        record_id=archive.file_name,
    )


def _check_order(archives: Sequence[AuditArchive]) -> None:
    expected, previous = 1, GENESIS_HASH
    for archive in archives:
        if archive.first_sequence > expected:
            raise Broken(
                expected,
                FaultKind.ARCHIVE,
                FaultReason.MISSING,
                f"No archive holds the events from {expected} on any more.",
            )
        if archive.first_sequence < expected or archive.last_sequence < archive.first_sequence:
            raise bad_archive(
                archive,
                FaultReason.INSERTED,
                "covers events that another one covers, or that there never were.",
            )
        if archive.previous_hash != previous:
            raise bad_archive(
                archive, FaultReason.UNLINKED, "does not follow what comes before it in the chain."
            )
        expected, previous = archive.last_sequence + 1, archive.last_hash


def _fields(archive: AuditArchive) -> dict[str, Any]:
    return {name: getattr(archive, name) for name in VOUCHED}


def _hashes(archives: Sequence[AuditArchive]) -> list[str]:
    """For each archive one hash over it and all before it."""
    hashes: list[str] = []
    for archive in archives:
        hashes.append(link_hash(hashes[-1] if hashes else GENESIS_HASH, content_hash(_fields(archive))))
    return hashes


def _events(head: int) -> Iterator[tuple[int, Any]]:
    """What the events of the database tell, in their order. One that does not hold is for the walk to find."""
    telling = AuditEvent.objects.filter(action=ACTION, sequence__lte=head).order_by("sequence")
    start = 0
    while True:
        found, error = page(EVENT_FORM, telling, _PAGE, start)
        for event in map(EventRow._make, found):
            if holds(event):
                yield event.sequence, event.after
        if error is None and len(found) < _PAGE:
            return
        start += len(found) + (error is not None)
