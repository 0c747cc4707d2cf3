"""A process is killed (SIGKILL) in the middle of an append, or of sealing: the chain holds, nothing is half there, and
the next one goes on.
"""

from __future__ import annotations

import random
import signal
import subprocess
import time
from collections.abc import Iterator

import pytest
from django.utils import timezone

from accounts.audit import sealing
from accounts.audit.verification import Verification, verify
from accounts.models import AuditEvent, AuditHead, AuditPersonalValue, SealedAssignment
from tests.accounts.audit import processes
from tests.accounts.audit.chains import record_events
from tests.accounts.audit.writing_process import assign

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow, pytest.mark.timeout(600)]

#: More than either verb has.
_STATEMENTS = 20


def assert_whole() -> Verification:
    """The chain holds, and nothing is there that is not in it."""
    found = verify(from_scratch=True)
    assert found.fault is None, found.fault
    head = AuditHead.objects.get()
    assert AuditEvent.objects.count() == head.sequence
    assert SealedAssignment.objects.count() == found.assignments
    assert not AuditPersonalValue.objects.filter(event_id__gt=head.sequence).exists()
    return found


def _deaths(verb: str) -> Iterator[int]:
    """Let a process do it, killed behind its first statement, the next one behind its second, until one is done."""
    process = processes.start("die", verb)
    assert process.stdin is not None
    assert process.stdout is not None
    for statement in range(1, _STATEMENTS):
        process.stdin.write(f"{statement}\n")
        process.stdin.flush()
        ended = process.stdout.readline().strip()
        if ended == "0":
            break
        assert ended == str(-signal.SIGKILL), ended + process.stdout.read()
        yield statement
    else:
        pytest.fail(f"{verb} has more statements than {_STATEMENTS}")
    process.stdin.close()
    assert process.wait(60) == 0


def test_an_append_that_is_killed_anywhere_leaves_nothing() -> None:
    record_events(1)
    deaths = 0
    for _ in _deaths("append"):
        assert assert_whole().events == 1
        deaths += 1
    assert deaths >= 4, "it locks the head, writes the event and what stands beside it, and moves the head"
    # The one that was not killed any more.
    assert assert_whole().events == 2
    record_events(1)
    assert assert_whole().events == 3


def test_a_sealer_that_is_killed_anywhere_leaves_nothing_and_the_next_one_seals_all() -> None:
    for _ in range(5):
        assign()
    seen = []
    for _ in _deaths("seal"):
        found = assert_whole()
        seen.append((found.events, found.assignments, found.unsealed))
    # Killed before it committed, or behind that, when it looked whether more waits.
    assert seen == sorted(seen)
    assert set(seen) == {(0, 0, 5), (1, 5, 0)}
    assert sealing.seal(timezone.now()) == 0


def test_processes_that_are_killed_while_they_write_leave_a_chain_that_holds() -> None:
    rng = random.Random(6)
    for round_ in range(3):
        started = [_writing() for _ in range(2)]
        time.sleep(rng.uniform(0.2, 1.0))
        for process in started:
            process.kill()
            process.wait()
        # PostgreSQL may be at a transaction of theirs for a moment more.
        time.sleep(0.5)
        before = assert_whole()
        assert before.events > 0, f"in round {round_} nothing was written"
        record_events(1)
        sealing.seal(timezone.now())
        after = assert_whole()
        assert after.events > before.events
        assert after.unsealed == 0
        assert after.assignments == before.assignments + before.unsealed


def _writing() -> subprocess.Popen[str]:
    """A process that writes until it is killed."""
    many = str(10**6)
    process = processes.start("append", many, "assign", many, "seal", many)
    assert process.stdout is not None
    assert process.stdout.readline() == "writing\n"
    return process
