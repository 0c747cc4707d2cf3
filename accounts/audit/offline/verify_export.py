#!/usr/bin/env python3
"""Checks an export or an archive of Signalbox's audit, without Signalbox and without a network.

It needs Python 3.9 or newer and nothing else, reads the file once, line by line, and believes only what it computes;
docs/audit-export.md says what each line must be. It prints what is proved and ends with 0; or names the first line that
is wrong and ends with 1; or ends with 2 where there is nothing to check.

A file that fits itself can be made by anybody. What shows that it is the audit as it was is what you hold: the public
key that was given to you (--key), checkpoints that were sent to you (--checkpoint).
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

LONGEST_LINE, LARGEST_BATCH = 16 * 1024 * 1024, 65536
INTRODUCTION, CHECKPOINT = ("public_key", "at", "signed_by"), ("sequence", "hash", "at", "key")
FIELDS = {
    "header": "record format kind first last previous id at event selection",
    "key": "record id public_key signed_by signature at",
    "event": "record content hash",  # and personal, where something is told
    "link": "record sequence content_hash",
    "assignment": "record content proof",
    "checkpoint": "record sequence hash at key signature",
    "end": "record sequence hash counts sha256",
}


class Bad(Exception):
    """A line is wrong, for this reason."""


def need(holds: object, reason: str) -> None:
    if not holds:
        raise Bad(reason)


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
    key, r = unhex(public_key), unhex(signature, 128)[:32]
    s = int.from_bytes(unhex(signature, 128)[32:], "little")
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
    form: Any = {"sort_keys": True, "separators": (",", ":"), "ensure_ascii": False, "allow_nan": False}
    return json.dumps(value, **form).encode()


def unhex(text: str, digits: int = 64) -> bytes:
    """The bytes of a hash, a key or a salt. Raises ``ValueError`` for any other way to write them."""
    if not re.fullmatch(f"[0-9a-f]{{{digits}}}", text):
        raise ValueError(f"{text} has not {digits} hexadecimal digits")
    return bytes.fromhex(text)


def sha256(*parts: bytes | str) -> str:
    """The hash of all parts in a row; those that are text are hashes themselves."""
    return hashlib.sha256(b"".join(unhex(one) if isinstance(one, str) else one for one in parts)).hexdigest()


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
    batch: Any = None  # the one whose assignments are being read
    newest: Any = None  # the last key
    told = ended = False
    number = sequence = signed = met = personal = withheld = batches = whole_batches = 0
    label, signer, last_line = "", "", b""

    def __init__(self, pinned: str) -> None:
        self.pinned, self.digest = pinned, hashlib.sha256()
        self.counts = dict.fromkeys(("event", "link", "assignment", "key", "checkpoint"), 0)
        self.keys: dict[str, Any] = {}
        self.kept: dict[int, list[tuple[str, str]]] = {}

    def line(self, line: bytes) -> None:
        self.number, self.label = self.number + 1, "no record"
        need(line.endswith(b"\n"), "is cut off, or longer than any line is")
        try:
            record = json.loads(line.decode())
            kind = self.label = record["record"]
            fields = set(record) - {"personal" if kind == "event" else ""}
            need(fields == set(FIELDS[kind].split()), "has other fields than such a record")
            need(canonical(record) + b"\n" == line, "is not written in canonical form")
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
        asked, first, archive = header["selection"], header["first"], header["kind"] == "archive"
        need(header["format"] == 1 and (archive or header["kind"] == "export"), "is of an unknown format")
        need((first == 1) == (unhex(header["previous"]) == bytes(32)), "begins where no chain begins")
        self.whole, self.to_head = asked["tenant"] is asked["lane"] is None, asked["last_at"] is None
        self.links = not self.whole or not (self.to_head or archive)
        self.header, self.sequence = header, first - 2
        self.step(first - 1, header["previous"])

    def on_key(self, key: Any) -> None:
        fingerprint, before, by = sha256(unhex(key["public_key"])), self.newest, key["signed_by"]
        in_place = self.sequence == self.header["first"] - 1 and (not before or before["at"] < key["at"])
        need(in_place and key["id"] not in self.keys, "is out of place")
        need(key["id"] == fingerprint[:16], "is not called after its public key")
        said = canonical({"signing_key": 1, "key": key["id"], **{name: key[name] for name in INTRODUCTION}})
        vouched = by and by == before["id"] and is_signed(before["public_key"], said, key["signature"])
        need(vouched or not by + key["signature"], "is not signed by the key before it")
        named = fingerprint.startswith(self.pinned) or key["public_key"] == self.pinned
        key["trusted"] = (named if self.pinned else not before) or (vouched and before["trusted"])
        (before or {})["until"] = key["at"]
        self.keys[key["id"]] = self.newest = key

    def on_event(self, event: Any) -> None:
        content, personal, header = event["content"], event.get("personal", {}), self.header
        found, follows = sha256(canonical(content)), content.get("previous") == self.hash
        if "format" in content:  # The first format had none, and the previous hash as a part of the content.
            found, follows = sha256(self.hash, found), content["format"] == 2
        self.step(content["sequence"], found)
        need(follows and event["hash"] == found, "is not what was recorded, or not after what is before it")
        need(not (self.whole and self.counts["link"]), "comes after one that is not shown, but all is to be")
        for path, one in personal.items():
            said = sha256(unhex(one.pop("salt"), 32), one.pop("value").encode())
            need(said == content["personal"][path] and not one, f"names another {path} than was recorded")
        self.personal += len(personal)
        self.withheld += len(content.get("personal", {})) - len(personal)
        if content["action"] == "lane_assignments.seal":
            self.batch = {**content["after"], "line": self.number, "leaves": [], "proved": 0, "index": -1}
        if self.sequence == header["event"]:
            told = [content["action"], content["object"][1], content["after"]]
            self.told = told == ["audit.export", header["id"], header["selection"]]
            need(self.told, "records another export than the header tells of")

    def on_link(self, link: Any) -> None:
        self.step(link["sequence"], sha256(self.hash, link["content_hash"]))
        need(self.links, "stands for an event that is not shown, but all is to be")

    def on_assignment(self, assignment: Any) -> None:
        content, proof, batch = assignment["content"], {"path": None, **assignment["proof"]}, self.batch
        self.label = f"assignment of generation {content['generation']}"
        leaf, index, path = sha256(b"\x00", canonical(content)), proof["index"], proof["path"]
        own = batch and {"batch": self.sequence, "size": batch["count"], "index": index, "path": path}
        need(own and proof == own and batch["index"] < index < batch["count"], "is not where it was sealed")
        if path is None:
            follows = index == len(batch["leaves"]) < LARGEST_BATCH and not batch["proved"]
            need(follows, "does not follow the one before it in its batch: lines are missing")
            batch["leaves"].append(leaf)
        else:
            leads = not batch["leaves"] and root_by_proof(leaf, index, batch["count"], path) == batch["root"]
            need(leads, "is not what was sealed: its proof does not lead to the root of its batch")
        batch["index"], batch["proved"] = index, path is not None

    def on_checkpoint(self, checkpoint: Any) -> None:
        key, said = self.keys.get(checkpoint["key"], {}), {name: checkpoint[name] for name in CHECKPOINT}
        need(key and checkpoint["sequence"] == self.sequence, "is out of place, or of an unknown key")
        signed = is_signed(key["public_key"], canonical({"checkpoint": 1, **said}), checkpoint["signature"])
        need(signed, "does not have the signature of its key")
        need(key["at"] <= checkpoint["at"] < key.get("until", "9999"), "is of a key that did not sign then")
        need(checkpoint["hash"] == self.hash, "was signed over another chain: this one was written anew")
        if key["trusted"]:
            self.signed, self.signer = self.sequence, key["public_key"]

    def on_end(self, end: Any) -> None:
        need(end["sequence"] == self.sequence == self.header["last"], "is not after the last event")
        fits = end["hash"] == self.hash and end["sha256"] == self.digest.hexdigest()
        need(fits and end["counts"] == self.counts, "does not say what was in the file: it was changed")
        need(self.told or not (self.to_head or self.header["event"]), "comes without the export's own event")
        self.ended = True

    def step(self, sequence: int, found: str) -> None:
        self.label = f"event {sequence}"
        need(sequence == self.sequence + 1, f"does not follow event {self.sequence}")
        self.sequence, self.hash = sequence, found
        for kept, at in self.kept.get(sequence, []):
            need(kept == found, f"is not what your checkpoint of {at} says: the chain was written anew")
            self.met = sequence

    def close_batch(self) -> None:
        batch, self.batch = self.batch, None
        if batch:
            full = len(batch["leaves"]) == batch["count"] and root_of(batch["leaves"]) == batch["root"]
            self.batches, self.whole_batches = self.batches + 1, self.whole_batches + full
            if not full and (self.whole or not batch["proved"]):
                self.label, self.number = f"event {self.sequence}", batch["line"]
                raise Bad("seals other assignments than those after it, or more, or fewer")

    def finish(self) -> str:
        """What can be told after the last line, and what is proved."""
        self.number, self.label = self.number + 1, "after the end"
        header, counts, last = self.header, self.counts, self.sequence
        need(self.ended, "is missing: the file was cut short")
        need(self.signed or not self.pinned, "is missing: nothing is signed with your key")
        until = (header["selection"]["last_at"] or header["at"]) if header["kind"] == "export" else ""
        for sequence, kept in self.kept.items():
            cut = sequence > last and any(at < until for _, at in kept)
            need(not cut, f"is missing: you have a checkpoint of event {sequence}, which was made before")
        trust = "which you named, or which follows from it" if self.pinned else "NOT compared: use --key"
        signed = f"up to event {self.signed}, key {self.signer} ({trust})" if self.signed else "by nobody"
        asked = ", ".join(f"{name} {value}" for name, value in header["selection"].items() if value)
        return f"""This {header["kind"]} holds: events {header["first"]} to {last}, {counts["event"]} shown; \
{counts["assignment"]} assignments of {self.batches} batches, {self.whole_batches} of these whole.
Asked for: {asked} ({"the chain" if self.told else "only the file itself"} says so).
Names and addresses: {self.personal} as recorded, {self.withheld} erased or left out.
Signed: {signed}. Your checkpoints: {f"agree up to event {self.met}" if self.met else "none compared"}.
Not proved by either: {max(0, last - max(self.signed, self.met))} events at the end."""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Checks an export or an archive of Signalbox's audit.")
    parser.add_argument("file", help="The export, or the archive (.gz); - reads the standard input.")
    parser.add_argument("--key", default="", help="The public key that you trust, or its SHA-256.")
    parser.add_argument("--checkpoint", help="A file of checkpoints that you have kept.")
    options = parser.parse_args(arguments)
    check, reason = Check(options.key), ""
    try:
        need(re.fullmatch("([0-9a-f]{16,64})?", options.key), "is not read: no key is what --key says")
        for one in map(json.loads, open(options.checkpoint, "rb")) if options.checkpoint else ():  # noqa: SIM115, PTH123
            check.kept.setdefault(one["sequence"], []).append((unhex(one["hash"]).hex(), one["at"]))
        file: Any = sys.stdin.buffer if options.file == "-" else open(options.file, "rb")  # noqa: SIM115, PTH123
        lines = gzip.GzipFile(fileobj=file) if file.peek(2)[:2] == b"\x1f\x8b" else file
        while line := lines.readline(LONGEST_LINE):
            check.line(line)
        print(check.finish())
        return 0
    except Bad as bad:
        reason = str(bad)
    except (OSError, EOFError, zlib.error, ValueError, KeyError, TypeError) as error:
        check.number, check.label, reason = check.number + 1, "unreadable", f"is not read: {error}"
    print(f"{options.file}: line {check.number} ({check.label}) {reason}.", file=sys.stderr)
    return 1 if check.header else 2


if __name__ == "__main__":
    sys.exit(main())
