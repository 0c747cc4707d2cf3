"""What the audit says of log-ins: who came in and left, what failed, and what was refused. Never what was typed.

Failures are anybody's to cause, so they cannot be allowed to fill the chain: up to a rate each is an event, beyond it
their number is one (``record_count``). Of what is refused, the first of each window is an event.
"""

from __future__ import annotations

from enum import StrEnum

from django.db import transaction

from accounts import audit, log_in_counters
from accounts.audit import ObjectRef
from accounts.log_in_counters import Limit
from accounts.models import User
from accounts.principal import Actor


class LogInFailure(StrEnum):
    """Why a log-in failed: for the audit alone. Whoever tries is told one thing for all of them."""

    UNKNOWN_USER = "unknown_user"
    WRONG_PASSWORD = "wrong_password"  # noqa: S105 — a code
    USER_CLOSED = "user_closed"


def record_log_in(*, user: User, actor: Actor) -> None:
    """``user`` has come in. In the transaction that makes the session, as its last statement."""
    audit.record(actor, "user.log_in", user, None, None)


def record_log_out(*, user: User, actor: Actor) -> None:
    """``user`` has left. In the transaction that ends the session, as its last statement."""
    audit.record(actor, "user.log_out", user, None, None)


def record_failure(*, username: str, actor: Actor) -> None:
    """A log-in as ``username`` has failed. What is no user's name is not recorded: it may be a password."""
    if not log_in_counters.gets_event():
        return
    user = User.objects.filter(username=username).first()
    if user is None:
        failure = LogInFailure.UNKNOWN_USER
    else:
        failure = LogInFailure.WRONG_PASSWORD if user.is_active else LogInFailure.USER_CLOSED
    with transaction.atomic():
        audit.record(actor, "user.log_in_failed", user or _nobody(), None, {"reason": failure})


def record_refusal(*, username: str, reached: Limit, actor: Actor) -> None:
    """From now on log-ins as ``username``, or from the actor's address, are refused for a while."""
    if not log_in_counters.gets_event():
        return
    user = User.objects.filter(username=username).first()
    with transaction.atomic():
        audit.record(actor, "user.log_in_throttled", user or _nobody(), None, {"limit": reached})


def record_count() -> int:
    """Record how many failures got no event of their own, as one. Returns the number.

    Raises ``redis.RedisError``. A crash between the event and the counter records a number again, and loses none.
    """
    count = log_in_counters.without_event()
    if count:
        with transaction.atomic():
            audit.record(
                Actor.system("log-ins"), "user.log_in_failed", _nobody(), None, {"further_failures": count}
            )
        log_in_counters.forget_without_event(count)
    return count


def _nobody() -> ObjectRef:
    return ObjectRef(kind="user", id="")
