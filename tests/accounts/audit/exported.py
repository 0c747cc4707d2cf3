"""An installation with some of everything that an export can hold, and exports of it as an auditor looks at them."""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterable
from contextlib import redirect_stderr, redirect_stdout
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.db import transaction
from django.utils import timezone

from accounts import audit
from accounts.audit import checkpoints, export, offline, sealing, signing_keys
from accounts.audit.canonical import canonical_json, content_hash, link_hash
from accounts.audit.export import Selection
from accounts.audit.offline import verify_export
from accounts.models import AuditSigningKey, LaneAssignment
from accounts.principal import Actor
from accounts.tenancy import every_tenant
from tests.accounts.audit.chains import assignment
from tests.accounts.audit.replaying import made_once
from tests.factories import ACTOR

SCRIPT = Path(offline.__file__).with_name("verify_export.py")

OURS, OTHERS = uuid.UUID(int=101), uuid.UUID(int=102)
PERSON = uuid.UUID(int=8)
#: Stand in what is recorded of ``OTHERS`` alone.
OF_OTHERS = ("Others Ltd", "others@example.com", OTHERS.hex, str(OTHERS))
#: Personal values of what is recorded of ``OURS``.
PERSONAL = ("tester", "192.0.2.7", "ada@example.com", "ada@example.org")

Record = dict[str, Any]


def record_of(tenant_id: uuid.UUID, *, lane: str = "normal", n: int = 0) -> None:
    """An event of a tenant, with people in it."""
    email = "others@example.com" if tenant_id == OTHERS else "ada@example.com"
    actor = (
        Actor("user", str(uuid.UUID(int=9)), "otto", "req_o", "198.51.100.9")
        if tenant_id == OTHERS
        else ACTOR
    )
    name = "Others Ltd" if tenant_id == OTHERS else "Ours Ltd"
    with transaction.atomic():
        audit.record(
            actor,
            "entitlement.change",
            audit.ObjectRef("entitlement", str(uuid.UUID(int=n)), name),
            {"lane_id": lane, "n": n, "email": email},
            {"lane_id": lane, "n": n + 1, "email": email.replace(".com", ".org")},
            tenant_id=tenant_id,
        )


def record_of_person(n: int = 0) -> None:
    """An event of the platform, about a person."""
    with transaction.atomic():
        audit.record(
            ACTOR, "user.change", audit.ObjectRef("user", str(PERSON), "grace"), {"n": n}, {"n": n + 1}
        )


def seal_for(tenants: Iterable[uuid.UUID], *, lane: str = "high") -> None:
    """A batch with an assignment for each of these tenants."""
    made = [
        assignment(
            tenant_id=tenant_id,
            tenant_name="Others Ltd" if tenant_id == OTHERS else "Ours Ltd",
            given_lane=lane if tenant_id == OURS else "low",
        )
        for tenant_id in tenants
    ]
    with every_tenant("the test assigns"):
        LaneAssignment.objects.bulk_create(made)
    assert sealing.seal(timezone.now()) == len(made)


@made_once
def furnish() -> AuditSigningKey:
    """Events of two tenants and of nobody, batches of every size, two keys, three checkpoints. The first key."""
    record_of(OURS)
    record_of(OTHERS, n=1)
    seal_for([OURS, OTHERS, OTHERS, OURS, OTHERS])
    assert checkpoints.make(timezone.now())
    first = signing_keys.public_keys()[0]
    record_of_person()
    signing_keys.rotate(actor=ACTOR)
    seal_for([OTHERS] * 3)
    seal_for([OURS])
    assert checkpoints.make(timezone.now())
    record_of(OTHERS, lane="high", n=2)
    record_of(OURS, lane="high", n=3)
    seal_for([OURS, OTHERS] * 4 + [OURS], lane="normal")
    assert checkpoints.make(timezone.now())
    record_of(OURS, n=4)
    return first


def exported(selection: Selection | None = None, *, with_personal: bool = True) -> bytes:
    """A whole export."""
    return b"".join(export.records(selection or Selection(), with_personal=with_personal, actor=ACTOR))


def records_in(text: bytes) -> list[Record]:
    return [json.loads(line) for line in text.splitlines()]


def of_kind(text: bytes, kind: str) -> list[Record]:
    return [record for record in records_in(text) if record["record"] == kind]


def totalled(records: Iterable[Record]) -> bytes:
    """The records as a file whose last line says what is in it, whatever that is."""
    *body, end = records
    text = b"".join(canonical_json(record) + b"\n" for record in body)
    kinds = Counter(record["record"] for record in body)
    counts = {kind: kinds[kind] for kind in ("event", "link", "gap", "assignment", "key", "checkpoint")}
    return text + canonical_json(end | {"counts": counts, "sha256": hashlib.sha256(text).hexdigest()}) + b"\n"


def anew(records: list[Record]) -> bytes:
    """The records with hashes that fit, from the first event on; signatures that do not fit any more are left out."""
    made: list[Record] = []
    chain = records[0]["previous"]
    sequence = records[0]["first"] - 1
    for record in deepcopy(records):
        match record["record"]:
            case "event":
                chain = link_hash(chain, content_hash(record["content"]))
                sequence = record["content"]["sequence"]
                record["hash"] = chain
            case "link":
                chain, sequence = link_hash(chain, record["content_hash"]), record["sequence"]
            case "gap":
                chain, sequence = record["hash"], record["sequence"]
            case "checkpoint" if record["hash"] != chain:
                continue
            case "end":
                record |= {"sequence": sequence, "hash": chain}
        made.append(record)
    return totalled(made)


@dataclass(frozen=True)
class Verdict:
    """What the script said of a file."""

    status: int
    said: str
    complaint: str


def checked(path: Path, text: bytes, *options: str) -> tuple[int, str]:
    """The script's verdict on a file, in this process: as ``verdict``, for very many files."""
    path.write_bytes(text)
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said):
        status = verify_export.main([str(path), *options])
    return status, said.getvalue()


def verdict(directory: Path, text: bytes, *options: str, name: str = "export.jsonl") -> Verdict:
    """Run the script as an auditor does: a process of its own, beside the file alone, with nothing to import."""
    directory.mkdir(exist_ok=True)
    (directory / name).write_bytes(text)
    ended = subprocess.run(
        [sys.executable, "-I", str(SCRIPT), name, *options],
        cwd=directory,
        env={},
        capture_output=True,
        text=True,
        timeout=120,
    )
    return Verdict(ended.returncode, ended.stdout, ended.stderr)
