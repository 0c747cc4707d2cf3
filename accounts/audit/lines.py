"""The lines of exports and archives: one JSON object each, in canonical form. ``docs/audit-export.md`` describes them.

Whoever checks a file reads it from the top, once, and needs to remember one line's worth: each line proves what it says
by what came before it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

from accounts.audit.canonical import canonical_json, utc_text
from accounts.models import AuditCheckpoint, AuditPersonalValue, AuditSigningKey

#: Of the lines as they are here. Another shape is another number.
FORMAT: Final = 1

Record = dict[str, Any]


def header(
    *,
    kind: str,
    first: int,
    last: int,
    previous: str,
    at: str,
    selection: Mapping[str, Any],
    export_id: str | None = None,
    event: int | None = None,
) -> Record:
    """The first line of a file of the events ``first`` to ``last``; ``previous`` is the chain's hash before them.

    ``kind`` is ``export`` or ``archive``, ``selection`` what was asked for. Of an export, ``export_id`` is which one it
    is, and ``event`` the one that records it: that says the same of it, and was recorded ``at`` that time.
    """
    return {
        "record": "header",
        "format": FORMAT,
        "kind": kind,
        "first": first,
        "last": last,
        "previous": previous,
        "at": at,
        "selection": dict(selection),
        "id": export_id,
        "event": event,
    }


def key(row: AuditSigningKey) -> Record:
    """A key that checkpoints are signed with, and the older key's word for it."""
    return {
        "record": "key",
        "id": row.id,
        "public_key": row.public_key,
        "signed_by": row.signed_by,
        "signature": row.signature,
        "at": utc_text(row.created_at),
    }


def event(content: Mapping[str, Any], chain_hash: str, personal: Mapping[str, AuditPersonalValue]) -> Record:
    """An event that is shown, the chain's hash at it, and what stands beside it about people, by path."""
    shown: Record = {"record": "event", "content": content, "hash": chain_hash}
    if personal:
        shown["personal"] = {
            path: {
                "salt": value.salt,
                "person": value.person_id.hex if value.person_id else None,
                "value": value.value,
            }
            for path, value in personal.items()
        }
    return shown


def link(sequence: int, hash_of_content: str) -> Record:
    """An event that is not shown: enough to follow the chain past it."""
    return {"record": "link", "sequence": sequence, "content_hash": hash_of_content}


def gap(sequence: int, chain_hash: str) -> Record:
    """Events that the file goes over, up to ``sequence``, where the chain's hash is ``chain_hash``."""
    return {"record": "gap", "sequence": sequence, "hash": chain_hash}


def assignment(
    content: Mapping[str, Any], *, batch: int, index: int, size: int, path: list[str] | None
) -> Record:
    """Assignment ``index`` of the ``size`` that the event ``batch`` sealed.

    ``path`` leads from it to the batch's root; None where all of the batch is in the file: the root follows from that.
    """
    proof: Record = {"batch": batch, "index": index, "size": size}
    if path is not None:
        proof["path"] = path
    return {"record": "assignment", "content": content, "proof": proof}


def checkpoint(row: AuditCheckpoint) -> Record:
    """A signature over the chain's hash at the event before it."""
    return {
        "record": "checkpoint",
        "sequence": row.sequence,
        "hash": row.hash,
        "at": utc_text(row.at),
        "key": row.key_id,
        "signature": row.signature,
    }


class Lines:
    """Turns records into lines, and keeps what the last line says of all of them."""

    def __init__(self) -> None:
        self._written = hashlib.sha256()
        self._counts: Counter[str] = Counter()

    def line(self, record: Record) -> bytes:
        """``record`` as a line; it counts as written."""
        line = canonical_json(record) + b"\n"
        self._written.update(line)
        self._counts[record["record"]] += 1
        return line

    def end(self, *, sequence: int, chain_hash: str) -> bytes:
        """The last line: the chain's hash at the last event, how many lines of each kind there are, and their SHA-256.

        That proves nothing of the audit; it tells a file that was cut short or damaged on its way.
        """
        kinds = ("event", "link", "gap", "assignment", "key", "checkpoint")
        counts = {kind: self._counts[kind] for kind in kinds}
        end = {"record": "end", "sequence": sequence, "hash": chain_hash, "counts": counts}
        return canonical_json({**end, "sha256": self._written.hexdigest()}) + b"\n"
