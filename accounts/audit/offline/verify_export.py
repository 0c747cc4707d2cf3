#!/usr/bin/env python3
"""Checks an export or an archive of Signalbox's audit, without Signalbox and without a network.

    python3 verify_export.py FILE [--key KEY] [--checkpoint FILE]

It needs Python 3.9 or newer and nothing else. It reads the file once, line by line, and believes only what it computes;
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
SEAL = "lane_assignments.seal"
FIELDS = {
    "header": "record format kind first last previous id at event selection",
    "key": "record id public_key signed_by signature at",
    "event": "record content hash",  # and personal, where there is something
    "link": "record sequence content_hash",
    "assignment": "record content proof",
    "checkpoint": "record sequence hash at key signature",
    "end": "record sequence hash counts sha256",
}


class Bad(Exception):
    """A line is wrong. Its arguments: the reason, and the line's number where that is not the line just read."""


def need(holds: object, reason: str) -> None:
    if not holds:
        raise Bad(reason)


# Ed25519, as RFC 8032 describes it (section 5.1). Points are (X, Y, Z, T) with x = X/Z, y = Y/Z, xy = T/Z.
Point = tuple[int, int, int, int]
P = 2**255 - 19
ORDER = 2**252 + 27742317777372353535851937790883648493
D = -121665 * pow(121666, P - 2, P) % P


def decoded(text: bytes) -> Point | None:
    """The point that 32 bytes stand for; None: they stand for none."""
    y = int.from_bytes(text, "little")
    odd, y = y >> 255, y % 2**255
    u, v = (y * y - 1) % P, (D * y * y + 1) % P
    x = u * pow(v, 3, P) * pow(u * pow(v, 7, P), (P - 5) // 8, P) % P
    if v * x * x % P != u:
        x = x * pow(2, (P - 1) // 4, P) % P
    if y >= P or v * x * x % P != u or (x == 0 and odd):
        return None
    x = x if x % 2 == odd else P - x
    return x, y, 1, x * y % P


def added(one: Point, other: Point) -> Point:
    (x1, y1, z1, t1), (x2, y2, z2, t2) = one, other
    a, b, c, d = (y1 - x1) * (y2 - x2), (y1 + x1) * (y2 + x2), 2 * D * t1 * t2, 2 * z1 * z2
    e, f, g, h = (b - a) % P, (d - c) % P, (d + c) % P, (b + a) % P
    return e * f % P, g * h % P, f * g % P, e * h % P


def is_signed(public_key: str, message: bytes, signature: str) -> bool:
    """Whether ``signature`` over ``message`` is that of ``public_key``; both are hexadecimal digits."""
    key, both = unhex(public_key), unhex(signature, 128)
    s, point = int.from_bytes(both[32:], "little"), decoded(key)
    base = decoded((4 * pow(5, P - 2, P) % P).to_bytes(32, "little"))
    if point is None or base is None or s >= ORDER:
        return False
    k = int.from_bytes(hashlib.sha512(both[:32] + key + message).digest(), "little") % ORDER
    minus = (P - point[0], point[1], 1, P - point[3])
    table, found = ((0, 1, 1, 0), base, minus, added(base, minus)), (0, 1, 1, 0)
    for bit in range(252, -1, -1):  # both multiples of [s]B - [k]A at once, bit by bit
        found = added(added(found, found), table[(s >> bit & 1) + 2 * (k >> bit & 1)])
    inverse = pow(found[2], P - 2, P)
    x, y = found[0] * inverse % P, found[1] * inverse % P
    return (y + (x % 2 << 255)).to_bytes(32, "little") == both[:32]


def canonical(value: Any) -> bytes:
    """The one way in which what is hashed is written: keys sorted, no spaces, UTF-8."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()


def unhex(text: str, digits: int = 64) -> bytes:
    """The bytes of a hash, a key or a salt. Raises ``ValueError`` for any other way to write them."""
    if not re.fullmatch(f"[0-9a-f]{{{digits}}}", text):
        raise ValueError(f"not {digits} hexadecimal digits: {text}")
    return bytes.fromhex(text)


def sha256(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()


def node(left: str, right: str) -> str:
    return sha256(b"\x01", unhex(left), unhex(right))


def root_of(leaves: list[str]) -> str:
    """The root of the tree over ``leaves`` (RFC 6962, section 2.1): one without a sibling moves up as it is."""
    while len(leaves) > 1:
        pairs = zip(leaves[::2], leaves[1::2])
        leaves = [node(left, right) for left, right in pairs] + leaves[len(leaves) // 2 * 2 :]
    return leaves[0]


def root_by_proof(leaf: str, index: int, size: int, path: list[str]) -> str:
    """The root of a tree of ``size`` leaves that ``path`` leads to (RFC 9162, section 2.1.3.2); empty: to none."""
    last = size - 1
    for sibling in path:
        if last == 0:
            return ""
        if index % 2 or index == last:
            leaf = node(sibling, leaf)
            while not index % 2 and index:
                index, last = index >> 1, last >> 1
        else:
            leaf = node(leaf, sibling)
        index, last = index >> 1, last >> 1
    return "" if last else leaf


class Check:
    """What is known after each line; there is a method for each kind of record."""

    def __init__(self, pinned: str, kept: dict[int, list[Any]]) -> None:
        self.pinned, self.kept, self.digest, self.last_line = pinned, kept, hashlib.sha256(), b""
        self.counts = dict.fromkeys(("event", "link", "assignment", "key", "checkpoint"), 0)
        self.header: Any = None
        self.batch: Any = None  # the one whose assignments are being read
        self.keys: dict[str, Any] = {}
        self.newest: Any = None
        self.told = self.ended = False
        self.number = self.signed = self.met = self.personal = self.withheld = self.batches = self.whole_batches = 0
        self.signer = self.label = ""

    def line(self, line: bytes) -> None:
        self.number, self.label = self.number + 1, "no record"
        need(line.endswith(b"\n"), "is cut off, or longer than any line is")
        try:
            record = json.loads(line.decode("utf-8"))
            kind = self.label = record["record"]
            fields = set(FIELDS[kind].split()) | ({"personal"} & set(record) if kind == "event" else set())
            canonically = canonical(record) + b"\n" == line
        except (ValueError, KeyError, TypeError, RecursionError):
            raise Bad("is not one JSON object of a kind that is known") from None
        need(canonically and set(record) == fields, "is not in canonical form, or has other fields than such a record")
        in_place = (kind == "header") == (self.header is None) and not self.ended and line != self.last_line
        need(in_place, "is out of place")
        try:
            if kind != "assignment":
                self.close_batch()
            getattr(self, "on_" + kind)(record)
        except (ValueError, KeyError, TypeError, AttributeError, IndexError):
            raise Bad("is not formed as such a record is") from None
        self.last_line = line
        self.digest.update(line)
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def on_header(self, header: Any) -> None:
        asked, first = header["selection"], header["first"]
        need(header["format"] == 1 and header["kind"] in ("export", "archive"), "is of a format that is not known here")
        need((first == 1) == (unhex(header["previous"]) == bytes(32)), "does not begin where a chain begins")
        self.header, self.hash, self.sequence = header, header["previous"], first - 1
        self.whole, self.to_head = asked["tenant"] is None and asked["lane"] is None, asked["last_at"] is None
        self.compare_kept()

    def on_key(self, key: Any) -> None:
        fingerprint, before = sha256(unhex(key["public_key"])), self.newest
        need(key["id"] == fingerprint[:16], "is not called after its public key")
        need(self.sequence == self.header["first"] - 1 and key["id"] not in self.keys, "is out of place")
        need(not before or before["at"] < key["at"], "is not younger than the key before it")
        vouched = bool(key["signed_by"])
        if vouched:
            said = {name: key[name] for name in ("public_key", "at", "signed_by")}
            statement = canonical({"signing_key": 1, "key": key["id"], **said})
            vouched = key["signed_by"] == before["id"] and is_signed(before["public_key"], statement, key["signature"])
        need(vouched or not key["signed_by"] + key["signature"], "does not have the signature of the key before it")
        named = fingerprint.startswith(self.pinned) or key["public_key"] == self.pinned
        key["trusted"] = (named if self.pinned else not before) or (vouched and before["trusted"])
        if before:
            before["until"] = key["at"]
        self.keys[key["id"]] = self.newest = key

    def on_event(self, event: Any) -> None:
        content, personal = event["content"], event.get("personal", {})
        found, follows = sha256(canonical(content)), content.get("previous") == self.hash
        if "format" in content:  # The first format had none, and the previous hash as a part of the content.
            found, follows = sha256(unhex(self.hash), unhex(found)), content["format"] == 2
        self.step(content["sequence"], found)
        need(follows and event["hash"] == found, "is not what was recorded, or not after what is before it (its hash)")
        need(not (self.whole and self.counts["link"]), "comes after one that is not shown, though everything is to be")
        for path, one in personal.items():
            said = sha256(unhex(one.pop("salt"), 32), one.pop("value").encode())
            need(said == content["personal"][path] and not one, f"names another {path} than was recorded")
        self.personal += len(personal)
        self.withheld += len(content.get("personal", {})) - len(personal)
        if content["action"] == SEAL:
            self.batch = {"line": self.number, "leaves": [], "proved": 0, "index": -1, **content["after"]}
        if self.sequence == self.header["event"]:
            self.told = True
            said_here = [content["action"], content["object"][1], content["after"]]
            said_there = ["audit.export", self.header["id"], self.header["selection"]]
            need(said_here == said_there, "records another export than the header tells of")

    def on_link(self, link: Any) -> None:
        self.step(link["sequence"], sha256(unhex(self.hash), unhex(link["content_hash"])))
        may_be = not self.whole or not (self.to_head or self.header["kind"] == "archive")
        need(may_be, "stands for an event that is not shown, though everything is to be")

    def on_assignment(self, assignment: Any) -> None:
        content, proof, batch = assignment["content"], assignment["proof"], self.batch
        self.label = f"assignment of generation {content['generation']}"
        place, size, index = {**proof, "path": 0}, proof["size"], proof["index"]
        in_batch = batch and place == {"batch": self.sequence, "index": index, "size": batch["count"], "path": 0}
        need(in_batch, "does not stand after the event that seals it")
        need(batch["index"] < index < size, "is not in its place among those of its batch")
        leaf, batch["index"] = sha256(b"\x00", canonical(content)), index
        if "path" in proof:
            fits = not batch["leaves"] and root_by_proof(leaf, index, size, proof["path"]) == batch["root"]
            need(fits, "is not what was sealed: its proof does not lead to the root of its batch")
            batch["proved"] += 1
        else:
            follows = index == len(batch["leaves"]) < LARGEST_BATCH and not batch["proved"]
            need(follows, "does not follow the one before it in its batch: lines are missing")
            batch["leaves"].append(leaf)

    def on_checkpoint(self, checkpoint: Any) -> None:
        key: Any = self.keys.get(checkpoint["key"])
        self.label = f"checkpoint of event {checkpoint['sequence']}"
        need(key, "is signed with a key that the file does not introduce")
        said = {name: checkpoint[name] for name in ("sequence", "hash", "at", "key")}
        genuine = is_signed(key["public_key"], canonical({"checkpoint": 1, **said}), checkpoint["signature"])
        need(genuine, "does not have the signature of its key")
        in_time = key["at"] <= checkpoint["at"] < key.get("until", "9999")
        need(in_time, "is signed with a key that was not the one that signed then")
        need(checkpoint["sequence"] == self.sequence, "is out of place")
        need(checkpoint["hash"] == self.hash, "was signed when the chain had another hash: it was written anew")
        if key["trusted"]:
            self.signed, self.signer = self.sequence, key["public_key"]

    def on_end(self, end: Any) -> None:
        there = end["sequence"] == self.sequence == self.header["last"]
        need(there, f"comes after event {self.sequence}; the file was to go to event {self.header['last']}")
        counts = {kind: count for kind, count in self.counts.items() if kind != "header"}
        fits = (end["hash"], end["counts"], end["sha256"]) == (self.hash, counts, self.digest.hexdigest())
        need(fits, "does not say what was in the file: lines were changed, added or taken away")
        need(self.told or self.header["event"] is None, "comes without the event that records the export")
        self.ended = True

    def step(self, sequence: int, found: str) -> None:
        self.label = f"event {sequence}"
        need(sequence == self.sequence + 1, f"does not follow event {self.sequence}: lines are missing or out of order")
        self.sequence, self.hash = sequence, found
        self.compare_kept()

    def compare_kept(self) -> None:
        for kept in self.kept.get(self.sequence, []):
            need(kept["hash"] == self.hash, f"is not what your checkpoint of {kept['at']} says: it was written anew")
            self.met = self.sequence

    def close_batch(self) -> None:
        batch, self.batch = self.batch, None
        if batch:
            full = len(batch["leaves"]) == batch["count"] and root_of(batch["leaves"]) == batch["root"]
            if not full and (batch["leaves"] or self.whole):
                self.label = f"event {self.sequence}"
                raise Bad(f"seals {batch['count']} assignments, and those after it are not these", batch["line"])
            self.batches, self.whole_batches = self.batches + 1, self.whole_batches + full

    def finish(self) -> str:
        """What can be told after the last line, and what is proved."""
        self.number, self.label, header, counts = self.number + 1, "after the end", self.header, self.counts
        need(self.ended, "is missing: the file was cut short")
        need(self.signed or not self.pinned, "is missing: nothing is signed with your key, or one that it introduced")
        for sequence in self.kept if self.to_head else ():
            for kept in self.kept[sequence]:
                whole = sequence <= self.sequence or kept["at"] > header["at"]
                need(whole, f"is missing: your checkpoint of {kept['at']} is of event {sequence}")
        asked = ", ".join(f"{name} {value}" for name, value in header["selection"].items() if value is not None)
        trust = "it is the one you named, or introduced by it" if self.pinned else "NOT compared with yours: use --key"
        signed = f"up to event {self.signed}; key {self.signer} ({trust})" if self.signed else "by nobody"
        return (
            f"This {header['kind']} holds: events {header['first']} to {header['last']}, {counts['event']} shown; "
            f"{counts['assignment']} assignments of {self.batches} batches, {self.whole_batches} of these whole.\n"
            f"Asked for: {asked} ({'the chain' if self.told else 'only the file itself'} says so).\n"
            f"Names and addresses: {self.personal} as recorded, {self.withheld} erased or left out.\n"
            f"Signed: {signed}. Your checkpoints: {f'agree up to event {self.met}' if self.met else 'none compared'}.\n"
            f"Not proved by either: {max(0, self.sequence - max(self.signed, self.met))} events at the end."
        )


def kept_checkpoints(path: str) -> dict[int, list[Any]]:
    """The checkpoints in the auditor's own file, by their event."""
    kept: dict[int, list[Any]] = {}
    with open(path, encoding="utf-8") as lines:
        for one in (json.loads(line) for line in lines if line.strip()):
            kept.setdefault(int(one["sequence"]), []).append({"hash": unhex(one["hash"]).hex(), "at": str(one["at"])})
    return kept


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Checks an export or an archive of Signalbox's audit, offline.")
    parser.add_argument("file", help="The export, or the archive (.gz); - reads the standard input.")
    parser.add_argument("--key", default="", help="The public key that you trust, or 16 to 64 digits of its SHA-256.")
    parser.add_argument("--checkpoint", help="A file of checkpoints that you have kept.")
    options = parser.parse_args(arguments)
    try:
        if options.key and not re.fullmatch("[0-9a-f]{16,64}", options.key):
            raise ValueError("a key has 16 to 64 hexadecimal digits")
        check = Check(options.key, kept_checkpoints(options.checkpoint) if options.checkpoint else {})
        file: Any = sys.stdin.buffer if options.file == "-" else open(options.file, "rb")
        lines = gzip.open(file) if file.peek(2)[:2] == b"\x1f\x8b" else file
    except (OSError, ValueError, KeyError, TypeError) as error:
        print(f"Nothing was checked: {error}", file=sys.stderr)
        return 2
    try:
        while line := lines.readline(LONGEST_LINE):
            check.line(line)
        print(check.finish())
    except Bad as bad:
        number = bad.args[1] if len(bad.args) > 1 else check.number
        print(f"{options.file}: line {number} ({check.label}) {bad.args[0]}.", file=sys.stderr)
        return 2 if check.header is None else 1
    except (OSError, EOFError, zlib.error) as error:
        print(f"{options.file}: line {check.number + 1} (unreadable) cannot be read: {error}.", file=sys.stderr)
        return 2 if check.header is None else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
