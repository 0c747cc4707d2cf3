"""The audit's checkpoints, sent to a receiver outside: signed, in their order, until they are taken."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from django.db import transaction
from django.utils import timezone
from structlog.testing import capture_logs

from accounts import audit
from accounts.audit import anchors, checkpoint_lines, checkpoints, signing_keys
from accounts.audit.anchors import AnchorKind
from accounts.models import AuditCheckpoint
from tests.accounts.audit.own_state import settle
from tests.accounts.webhooks.conftest import Allow
from tests.accounts.webhooks.receiver import HOST, OTHER_HOST, Received, Receiver
from tests.factories import ACTOR

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey")]

Settle = Callable[..., None]


@pytest.fixture(autouse=True)
def settle_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, receiver: Receiver, allow: Allow) -> Settle:
    allow(HOST)

    def change(**changes: Any) -> None:
        settle(monkeypatch, tmp_path, **{"audit_anchor_url": receiver.url("/anchor"), **changes})

    change()
    return change


def make(count: int = 1) -> list[AuditCheckpoint]:
    made = []
    for _ in range(count):
        with transaction.atomic():
            audit.record(ACTOR, "thing.change", audit.ObjectRef("thing", "1"), None, None)
        checkpoint = checkpoints.make(timezone.now())
        assert checkpoint is not None
        made.append(checkpoint)
    return made


def deliver(at: datetime | None = None, **options: Any) -> list[str]:
    return anchors.deliver(at or timezone.now(), **options)


def sent(receiver: Receiver) -> list[int]:
    return [json.loads(message.body)["data"]["sequence"] for message in receiver.received]


def is_genuine(message: Received, public_key: str) -> bool:
    """What a receiver does by the convention, written as its specification says."""
    signed = (
        f"{message.headers['webhook-id']}.{message.headers['webhook-timestamp']}.".encode() + message.body
    )
    version, _, signature = message.headers["webhook-signature"].partition(",")
    assert version == "v1a"
    Ed25519PublicKey.from_public_bytes(bytes.fromhex(public_key)).verify(base64.b64decode(signature), signed)
    return True


def test_a_checkpoint_arrives_signed_and_is_the_line_that_the_file_has(
    receiver: Receiver, tmp_path: Path
) -> None:
    [checkpoint] = make()
    assert deliver() == []
    [message] = receiver.received
    assert message.path == "/anchor"
    assert message.headers["webhook-id"] == f"ckpt_{checkpoint.id.hex}"
    [key] = signing_keys.public_keys()
    assert is_genuine(message, key.public_key)
    body = json.loads(message.body)
    assert body["type"] == "audit.checkpoint"
    received = checkpoint_lines.parse(json.dumps(body["data"]))
    assert [received] == checkpoint_lines.read_file(tmp_path / "audit" / "checkpoints.jsonl")
    assert checkpoints.fault_of(received) is None


def test_each_is_sent_once_in_its_order(receiver: Receiver) -> None:
    first = make()
    deliver()
    more = make(3)
    for _ in range(2):
        deliver()
    assert sent(receiver) == [one.sequence for one in first + more]


def test_the_first_time_the_newest_is_sent(receiver: Receiver) -> None:
    made = make(3)
    deliver()
    assert sent(receiver) == [made[-1].sequence]


def test_a_receiver_that_fails_is_left_alone_for_a_while_and_misses_none(receiver: Receiver) -> None:
    make()
    deliver()
    receiver.received.clear()
    receiver.status = 503
    made = make(2)
    now = timezone.now()
    with capture_logs() as logs:
        [problem] = deliver(now)
        assert "503" in problem
        assert deliver(now + timedelta(seconds=5)) == []
        assert len(receiver.received) == 1
        assert len(deliver(now + timedelta(seconds=30))) == 1
        assert deliver(now + timedelta(seconds=60)) == []
        assert len(deliver(now + timedelta(seconds=61), at_once=True)) == 1
    assert [entry["event"] for entry in logs] == ["audit_anchor_failed"]
    state = anchors.state_of(AnchorKind.WEBHOOK)
    assert (state.failures, anchors.waiting(state).count()) == (3, 2)
    # However often it has failed, it is asked again within the hour.
    for hours in range(1, 12):
        assert len(deliver(now + timedelta(hours=hours))) == 1
    receiver.received.clear()
    receiver.status = 200
    with capture_logs() as logs:
        deliver(now + timedelta(hours=12))
    assert [entry["event"] for entry in logs] == ["audit_anchor_works_again"]
    assert sent(receiver) == [one.sequence for one in made]
    assert anchors.state_of(AnchorKind.WEBHOOK).failures == 0


def test_many_that_wait_are_sent_over_several_runs(receiver: Receiver) -> None:
    make()
    deliver()
    made = make(7)
    deliver()
    assert len(receiver.received) == 6
    deliver()
    assert sent(receiver)[1:] == [one.sequence for one in made]


def test_a_receiver_that_fails_does_not_keep_the_file_from_being_written(
    receiver: Receiver, tmp_path: Path
) -> None:
    receiver.status = 500
    [checkpoint] = make()
    assert len(deliver()) == 1
    assert (tmp_path / "audit" / "checkpoints.jsonl").read_text() == f"{checkpoint_lines.line(checkpoint)}\n"


def test_the_rules_of_webhooks_hold(receiver: Receiver, settle_here: Settle) -> None:
    make()
    for url, said in [
        (receiver.url(host=OTHER_HOST), "not public"),
        (receiver.url().replace("https", "http"), "https only"),
    ]:
        settle_here(audit_anchor_url=url)
        [problem] = deliver()
        assert said in problem
    assert receiver.received == []


def test_another_url_has_got_nothing_yet(receiver: Receiver, settle_here: Settle) -> None:
    make(2)
    deliver()
    settle_here(audit_anchor_url=receiver.url("/elsewhere"))
    deliver()
    assert [message.path for message in receiver.received] == ["/anchor", "/elsewhere"]


def test_without_the_private_key_nothing_is_sent_and_it_is_said(receiver: Receiver, tmp_path: Path) -> None:
    make()
    for path in (tmp_path / "secrets").glob("audit_signing_key.*"):
        path.unlink()
    [problem] = deliver()
    assert "rotate-key --lost" in problem
    assert receiver.received == []


def test_without_a_url_nothing_is_sent(receiver: Receiver, settle_here: Settle) -> None:
    settle_here(audit_anchor_url="")
    make()
    assert deliver() == []
    assert anchors.kinds() == [AnchorKind.FILE]
    assert receiver.received == []
