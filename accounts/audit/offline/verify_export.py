#!/usr/bin/env python3
"""Checks an export or an archive of Signalbox's audit, without Signalbox and without a network.

It needs Python 3.9 or newer and nothing else, and believes only what it computes; docs/audit-export.md says what each
line must be. It ends with 0 and says what is proved; with 3 where your key does not prove all of it; with 1 and the
first line that is wrong; with 2 where there is nothing to check.

Anybody can make a file that fits itself. What shows that it is the audit is what you hold: the public key that was
given to you (--key), checkpoints that were sent to you (--checkpoint).
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import re
import sys
import zlib
from typing import Any

LONGEST_LINE, LARGEST_BATCH, MOST_KEYS = 16 * 1024 * 1024, 65536, 1000
KINDS = ("event", "link", "gap", "assignment", "key", "checkpoint")  # that are counted

# What a line must be, to its last field. A text is a pattern, a tuple: one of these, a list: these in a row, a dict:
# these fields and no others, a type: anything of it; what is none of that stands for itself.
HASH, ID, KEY_ID, SIGNATURE = (f"[0-9a-f]{{{digits}}}" for digits in (64, 32, 16, 128))
TIME = "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}[.][0-9]{6}[+]00:00"
PATH, LANE, FIELDS = "[a-z_]{1,30}([.][a-z_]{1,30})?", "[-a-zA-Z0-9_]{1,30}", (None, dict)
SELECTION: Any = {"tenant": (None, ID), "lane": (None, LANE), "personal": bool}
SELECTION |= {"first_at": (None, TIME), "last_at": (None, TIME)}
CONTENT: Any = {"sequence": int, "at": TIME, "actor": [str] * 3, "action": str, "object": [str] * 3}
CONTENT |= {"tenant": (None, ID), "before": FIELDS, "after": FIELDS, "request": str, "address": str}
OLD, NEW = CONTENT | {"previous": HASH}, CONTENT | {"format": 2, "session": str, "personal": dict}
EVENT: Any = {"content": (OLD, NEW), "hash": HASH}  # of the first format, or of the second
PERSONAL: Any = {"salt": ID, "person": (None, ID), "value": str}
BATCH: Any = {"root": HASH, "count": int, "first_at": TIME, "last_at": TIME}  # after, where one is sealed
ASSIGNMENT: Any = {"format": 1, "generation": ID, "at": TIME, "tenant": [ID, str], "key": [(None, ID), str]}
ASSIGNMENT |= {"user": (None, ID), "requested_lane": str, "given_lane": str, "reason": str, "entitlement": ID}
ASSIGNMENT |= {"step_downs": list, "budget_position": list, "policy_version": int}
PROOF: Any = {"batch": int, "index": int, "size": int}
INTRODUCTION: Any = {"public_key": HASH, "at": TIME, "signed_by": (KEY_ID, "")}  # what is signed of a key
CHECKPOINT: Any = {"sequence": int, "hash": HASH, "at": TIME, "key": KEY_ID}  # what is signed of a checkpoint
HEADER: Any = {"format": 1, "kind": "export|archive", "first": int, "last": int, "previous": HASH, "at": TIME}
FORMS: Any = {
    "header": HEADER | {"id": (None, ID), "event": (None, int), "selection": SELECTION},
    "key": INTRODUCTION | {"id": KEY_ID, "signature": (SIGNATURE, "")},
    "event": (EVENT, EVENT | {"personal": dict}),
    "link": {"sequence": int, "content_hash": HASH},
    "gap": {"sequence": int, "hash": HASH},
    "assignment": {"content": ASSIGNMENT, "proof": (PROOF, PROOF | {"path": list})},
    "checkpoint": CHECKPOINT | {"signature": SIGNATURE},
    "end": {"sequence": int, "hash": HASH, "sha256": HASH, "counts": dict.fromkeys(KINDS, int)},
}


class Bad(Exception):
    """A line is wrong, for this reason."""


def need(holds: object, reason: str) -> None:
    if not holds:
        raise Bad(reason)


def fits(value: Any, form: Any) -> bool:
    """Whether ``value`` is as ``form`` says."""
    if isinstance(form, tuple):
        return any(fits(value, one) for one in form)
    if isinstance(form, str):
        return type(value) is str and re.fullmatch(form, value) is not None
    if type(form) in (dict, list):
        parts = form.items() if isinstance(form, dict) else enumerate(form)
        alike = type(value) is type(form) and len(value) == len(form)
        return alike and all(fits(value[at], part) for at, part in parts)
    return type(value) is form or (type(value) is type(form) and value == form)


# Ed25519, as RFC 8032 describes it (section 5.1). Points are (X, Y, Z, T): x = X/Z, y = Y/Z, xy = T/Z.
P, ORDER = 2**255 - 19, 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P


def decoded(text: bytes) -> Any:
    """The point that 32 bytes stand for; None: they stand for none."""
    odd, y = divmod(int.from_bytes(text, "little"), 2**255)
    u, v = (y * y - 1) % P, (D * y * y + 1) % P
    x = u * pow(v, 3, P) * pow(u * pow(v, 7, P), (P - 5) // 8, P) % P
    if v * x * x % P != u:
        x = x * pow(2, (P - 1) // 4, P) % P
    if y >= P or v * x * x % P != u or (x == 0 and odd):
        return None
    x = x if x % 2 == odd else P - x
    return x, y, 1, x * y % P


def added(one: Any, other: Any) -> Any:
    (x1, y1, z1, t1), (x2, y2, z2, t2) = one, other
    a, b, c, d = (y1 - x1) * (y2 - x2), (y1 + x1) * (y2 + x2), 2 * D * t1 * t2, 2 * z1 * z2
    e, f, g, h = (b - a) % P, (d - c) % P, (d + c) % P, (b + a) % P
    return e * f % P, g * h % P, f * g % P, e * h % P


def is_signed(public_key: str, message: bytes, signature: str) -> bool:
    """Whether ``signature`` over ``message`` is that of ``public_key``; both are hexadecimal digits."""
    key, r = bytes.fromhex(public_key), bytes.fromhex(signature)[:32]
    s = int.from_bytes(bytes.fromhex(signature)[32:], "little")
    base, point = decoded((4 * pow(5, P - 2, P) % P).to_bytes(32, "little")), decoded(key)
    if base is None or point is None or s >= ORDER:
        return False
    k = int.from_bytes(hashlib.sha512(r + key + message).digest(), "little") % ORDER
    minus, found = (P - point[0], point[1], 1, P - point[3]), (0, 1, 1, 0)
    table = (found, base, minus, added(base, minus))
    for bit in range(252, -1, -1):  # both multiples of [s]B - [k]A at once, bit by bit
        found = added(added(found, found), table[(s >> bit & 1) + 2 * (k >> bit & 1)])
    inverse = pow(found[2], P - 2, P)
    return (found[1] * inverse % P + (found[0] * inverse % P % 2 << 255)).to_bytes(32, "little") == r


def canonical(value: Any) -> bytes:
    """The one way in which what is hashed is written: keys sorted, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def sha256(*parts: bytes | str) -> str:
    """The hash of all parts in a row; those that are text are hexadecimal digits."""
    return hashlib.sha256(b"".join(bytes.fromhex(p) if isinstance(p, str) else p for p in parts)).hexdigest()


def root_of(leaves: list[str]) -> str:
    """The root of the tree over ``leaves`` (RFC 6962, section 2.1): one without a sibling moves up as it is."""
    while len(leaves) > 1:
        nodes = [sha256(b"\x01", *pair) for pair in zip(leaves[::2], leaves[1::2])]
        leaves = nodes + leaves[2 * len(nodes) :]
    return leaves[0]


def root_by_proof(leaf: str, index: int, size: int, path: list[str]) -> str:
    """The root over ``size`` leaves that ``path`` leads to from one of them (RFC 6962, section 2.1.1)."""
    if size == 1:
        return "" if path else leaf
    half = 1 << (size - 1).bit_length() - 1
    if index < half:
        return sha256(b"\x01", root_by_proof(leaf, index, half, path[:-1]), path[-1])
    return sha256(b"\x01", path[-1], root_by_proof(leaf, index - half, size - half, path[:-1]))


class Check:
    """What is known after each line; there is a method for each kind of record."""

    header: Any = None
    batch = newest = loose = header  # that is being read; the last key; how many before a gap nothing proves
    told = ended = number = sequence = signed = sealed = met = agreed = personal = withheld = 0
    batches = whole_batches = 0
    label, signer, last_line, oldest, latest = "no record", "", b"", "9999", ""

    def __init__(self, pinned: str) -> None:
        self.pinned, self.digest, self.counts = pinned, hashlib.sha256(), dict.fromkeys(KINDS, 0)
        self.keys: dict[str, Any] = {}
        self.kept: dict[int, list[tuple[str, str]]] = {}

    def line(self, line: bytes) -> None:
        self.number, self.label = self.number + 1, "no record"
        need(line.endswith(b"\n"), "is cut off, or longer than any line is")
        number: Any = lambda text: int(text[:100])  # noqa: E731 - takes no float, and of no number too many digits
        try:
            record = json.loads(line.decode(), parse_int=number, parse_float=number, parse_constant=number)
            written, kind = canonical(record) + b"\n", record.pop("record")
            formed, self.label = fits(record, FORMS[kind]), kind
            need(written == line, "is not written in canonical form")
            need(formed, "has other fields than such a record, or something else in them")
            begins = (kind == "header") == (self.header is None)
            need(begins and not self.ended and line != self.last_line, "is out of place")
            if kind != "assignment":
                self.close_batch()
            getattr(self, "on_" + kind)(record)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError):
            raise Bad("is not formed as a record is") from None
        self.last_line = line
        self.digest.update(line)
        self.counts.update({kind: self.counts[kind] + 1} if kind in self.counts else {})

    def on_header(self, header: Any) -> None:
        self.header = header
        asked, first, last, own = (header[name] for name in ("selection", "first", "last", "event"))
        self.whole, self.archive = asked["tenant"] is asked["lane"] is None, header["kind"] == "archive"
        can_be = [self.whole, asked["personal"], header["id"], own] == [True, False, None, None]
        if not self.archive:
            can_be = header["id"] and own and (own == last or (own > last and asked["last_at"]))
            can_be = can_be and (first == 1 or asked["first_at"] or not self.whole)
        genesis = (first == 1) == (header["previous"] == "0" * 64)
        need(can_be and genesis and 1 <= first <= last, "begins or ends where no such file does")
        self.step(first - 1, header["previous"], over=True)

    def on_key(self, key: Any) -> None:
        fingerprint, before, by = sha256(key["public_key"]), self.newest, key["signed_by"]
        on_top = self.sequence == self.header["first"] - 1 and not self.counts["checkpoint"]
        is_next = key["id"] not in self.keys and (not before or before["at"] < key["at"])
        need(on_top and is_next and len(self.keys) < MOST_KEYS, "is out of place, or one too many")
        need(key["id"] == fingerprint[:16], "is not called after its public key")
        said = canonical({"signing_key": 1, "key": key["id"], **{name: key[name] for name in INTRODUCTION}})
        vouched = by and by == before["id"] and is_signed(before["public_key"], said, key["signature"])
        need(vouched or not by + key["signature"], "is not signed by the key before it")
        named = fingerprint.startswith(self.pinned) or key["public_key"] == self.pinned
        key["trusted"] = (named if self.pinned else not before) or (vouched and before["trusted"])
        (before or {})["until"] = key["at"]
        self.keys[key["id"]] = self.newest = key

    def on_event(self, event: Any) -> None:
        content, told, header = event["content"], event.get("personal", {}), self.header
        sequence, commitments, last = content["sequence"], content.get("personal", {}), header["last"]
        found, follows = sha256(canonical(content)), content.get("previous") == self.hash
        if "format" in content:  # The first format had none, and the previous hash as a part of the content.
            found, follows = sha256(self.hash, found), True
        self.step(sequence, found)
        need(follows and event["hash"] == found, "is not what was recorded, or not after what is before it")
        need(sequence <= last or sequence == header["event"], "shows more than was asked for")
        formed = all(fits(path, PATH) and fits(one, HASH) for path, one in commitments.items())
        asked = "personal" not in event or (told and header["selection"]["personal"])
        need(formed and asked, "has commitments that are none, or names that were not asked for")
        for path, one in told.items():
            need(path in commitments and fits(one, PERSONAL), "names what was not recorded")
            said = sha256(one["salt"], f"{one['person'] or ''}\n{one['value']}".encode())
            need(said == commitments[path], f"names another {path} than was recorded")
        self.personal, self.withheld = self.personal + len(told), self.withheld + len(commitments) - len(told)
        self.oldest, self.latest = min(self.oldest, content["at"]), max(self.latest, content["at"])
        if content["action"] == "lane_assignments.seal":
            need(fits(content["after"], BATCH), "seals no batch")
            self.batch = {**content["after"], "line": self.number, "leaves": [], "proved": 0, "index": -1}
        if sequence == header["event"]:
            until = last if last < sequence else None
            claims = {"first": header["first"], "last": until, **header["selection"]}
            right = ["audit.export", ["audit_export", header["id"]], claims, header["at"]]
            tells = [content["action"], content["object"][:2], content["after"], content["at"]]
            self.told = canonical(tells) == canonical(right)
            need(self.told, "records another export than the header tells of")

    def on_link(self, link: Any) -> None:
        sequence, header = link["sequence"], self.header
        self.step(sequence, sha256(self.hash, link["content_hash"]))
        may_be = not self.whole or sequence > header["last"]
        need(may_be and sequence != header["event"], "stands for an event that is not shown, but is to be")

    def on_gap(self, gap: Any) -> None:
        own, last = self.header["event"] or 0, self.header["last"]
        need(last <= self.sequence == self.sealed < gap["sequence"] == own - 1, "is out of place")
        self.loose = max(0, last - max(self.signed, self.met))
        self.step(gap["sequence"], gap["hash"], over=True)

    def on_assignment(self, assignment: Any) -> None:
        content, proof, batch = assignment["content"], {"path": None, **assignment["proof"]}, self.batch
        self.label = f"assignment of generation {content['generation']}"
        leaf, index, path = sha256(b"\x00", canonical(content)), proof["index"], proof["path"]
        own = batch and {"batch": self.sequence, "size": batch["count"], "index": index, "path": path}
        need(own and proof == own and batch["index"] < index < batch["count"], "is not where it was sealed")
        if path is None:
            need(index == len(batch["leaves"]) < LARGEST_BATCH and not batch["proved"], "is not the next one")
            batch["leaves"].append(leaf)
        else:
            formed = all(fits(one, HASH) for one in path) and not batch["leaves"]
            leads = formed and root_by_proof(leaf, index, batch["count"], path) == batch["root"]
            need(leads, "is not what was sealed: its proof does not lead to the root of its batch")
        batch["index"], batch["proved"] = index, path is not None

    def on_checkpoint(self, checkpoint: Any) -> None:
        key, said = self.keys.get(checkpoint["key"], {}), {name: checkpoint[name] for name in CHECKPOINT}
        need(key and checkpoint["sequence"] == self.sequence, "is out of place, or of an unknown key")
        signed = is_signed(key["public_key"], canonical({"checkpoint": 1, **said}), checkpoint["signature"])
        need(signed, "does not have the signature of its key")
        need(key["at"] <= checkpoint["at"] < key.get("until", "9999"), "is of a key that did not sign then")
        need(checkpoint["hash"] == self.hash, "was signed over another chain: this one was written anew")
        self.sealed = self.sequence
        if key["trusted"]:
            self.signed, self.signer = self.sequence, key["public_key"]

    def on_end(self, end: Any) -> None:
        header, asked = self.header, self.header["selection"]
        need(end["sequence"] == self.sequence >= header["last"], "is not after the last event")
        whole = end["hash"] == self.hash and end["sha256"] == self.digest.hexdigest()
        need(whole and end["counts"] == self.counts, "does not say what was in the file: it was changed")
        times = [asked["first_at"], asked["last_at"], header["at"]] == [self.oldest, self.latest, self.latest]
        held = self.sequence == header["last"] and times if self.archive else self.told
        need(held, "comes without the export's own event, or after other events than an archive names")
        self.ended = True

    def step(self, sequence: int, found: str, over: bool = False) -> None:
        """Go on to the next event, or ``over`` some; ``found`` is the chain's hash there."""
        need(over or sequence == self.sequence + 1, f"does not follow event {self.sequence}")
        self.sequence, self.hash, self.label = sequence, found, f"event {sequence}"
        for kept, at in self.kept.get(sequence, []):
            need(kept == found, f"is not what your checkpoint of {at} says: the chain was written anew")
            self.met = sequence
        self.agreed += sequence in self.kept

    def close_batch(self) -> None:
        batch, self.batch = self.batch, None
        if batch:
            full = len(batch["leaves"]) == batch["count"] and root_of(batch["leaves"]) == batch["root"]
            self.batches, self.whole_batches = self.batches + 1, self.whole_batches + full
            if not full and (self.whole or not batch["proved"]):
                self.label, self.number = f"event {self.sequence}", batch["line"]
                raise Bad("seals other assignments than those after it, or more, or fewer")

    def finish(self) -> int:
        """After the last line: say what is proved. The status to end with."""
        self.number, self.label = self.number + 1, "after the end"
        need(self.ended, "is missing: the file was cut short")
        need(self.signed or not self.pinned, "is missing: nothing is signed with your key")
        header, counts, asked, last = self.header, self.counts, self.header["selection"], self.header["last"]
        until = min(header["at"], asked["last_at"] or header["at"])
        for sequence, kept in sorted(self.kept.items()):
            cut = sequence > last and min(at for _, at in kept) < until
            need(not cut, f"is missing: you have a checkpoint of event {sequence}, made before {until}")
        proved, own = max(self.signed, self.met), header["event"] or 0
        loose = max(0, last - proved) if self.loose is None else self.loose
        signed = f"up to event {self.signed}, key {self.signer}" if self.signed else "by nobody"
        wanted = ", ".join(f"{name} {value}" for name, value in asked.items() if type(value) is str)
        by = f"event {own} says so" if own else "the file says so: see audit.archive for its SHA-256"
        by = by if 0 < own <= proved else f"NOT PROVED: only {by}"
        ends = [sequence for sequence in self.kept if sequence > self.sequence]
        print(f"""This {header["kind"]} holds: events {header["first"]} to {last}, {counts["event"]} shown; \
{counts["assignment"]} assignments of {self.batches} batches, {self.whole_batches} of these whole.
Asked for: {wanted or "everything"}; this is what there was at {until} ({by}).
Names and addresses: {self.personal} as recorded, {self.withheld} erased or left out.
Signed: {signed} ({"which you named, or which follows from it" if self.pinned else "NOT compared: use --key"}). \
Your checkpoints: {self.agreed} of {len(self.kept)} agree, up to event {self.met}\
{f"; THE FILE ENDS BEFORE {len(ends)}, the first of event {min(ends)}" if ends else ""}.
Not proved by either: {loose} events of these{"" if own <= proved else ", and what was asked for"}.""")
        return 3 if self.pinned and (loose or own > proved) else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Checks an export or an archive of Signalbox's audit.")
    parser.add_argument("file", help="The export, or the archive (.gz); - reads the standard input.")
    parser.add_argument("--key", default="", help="The public key that you trust, or its SHA-256.")
    parser.add_argument("--checkpoint", help="A file of checkpoints that you have kept.")
    options = parser.parse_args(arguments)
    check = Check(options.key)
    try:
        need(re.fullmatch("([0-9a-f]{16,64})?", options.key), "is not read: no key is what --key says")
        for one in map(json.loads, open(options.checkpoint, "rb")) if options.checkpoint else ():  # noqa: SIM115, PTH123
            need(fits({name: one[name] for name in CHECKPOINT}, CHECKPOINT), "is not read: bad --checkpoint")
            check.kept.setdefault(one["sequence"], []).append((one["hash"], one["at"]))
        file: Any = sys.stdin.buffer if options.file == "-" else open(options.file, "rb")  # noqa: SIM115, PTH123
        lines = gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == b"\x1f\x8b" else file
        while line := lines.readline(LONGEST_LINE):
            check.line(line)
        return check.finish()
    except Bad as bad:
        said = str(bad)
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError, RecursionError) as error:
        check.number, check.label, said = check.number + 1, "unreadable", f"is not read: {error}"
    said = f"{options.file}: line {check.number} ({check.label}) {said}."
    print("".join(one if one.isprintable() else ascii(one)[1:-1] for one in said), file=sys.stderr)
    return 1 if check.header else 2


if __name__ == "__main__":
    sys.exit(main())
