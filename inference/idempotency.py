"""The same request again is answered the same: a client's own name for a request, kept beside what it made.

The name is written in the transaction that makes the thing, under a unique constraint, so that of several requests
with one name, however close together, exactly one makes it; the others find it. A name is its tenant's, its key's (or
user's) and its route's own, stands for one body, and is kept for ``KEPT``. A request that was refused made nothing, and
its name is free again. So is that of a generation which was ended because nobody read it: whoever comes back for its
answer has had none.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from django.db import IntegrityError, connections, transaction
from django.db.models import Q
from django.utils import timezone

from accounts import sole_passes
from accounts.audit.canonical import canonical_json
from accounts.principal import Principal
from accounts.tenancy import tenant_scope
from inference.messages import CancelReason
from inference.models import Generation, IdempotencyKey
from inference.models.generation import GenerationState

#: How long a name stands for what it made.
KEPT: Final = timedelta(hours=24)
#: Longest name, in characters.
LONGEST: Final = 255

#: How long the admission of a named request may keep its repeats waiting, in seconds: about as long as one may take.
_ADMITTED_WITHIN_S: Final = 10.0
#: After how long a repeat looks again, at first and at most.
_LOOK_AGAIN_S: Final = (0.01, 0.2)

#: Of names whose generation was ended because nobody read it.
_UNREAD: Final = Q(
    generation__state=GenerationState.CANCELLED, generation__cancel_reason=CancelReason.DETACHED
)


class BodyDiffers(Exception):
    """The name stands for a request with another body."""


class AlreadyMade(Exception):
    """Another request of this name was faster: look it up. The caller's transaction must be rolled back."""


@dataclass(frozen=True, slots=True)
class NamedRequest:
    """A request that its client has named. ``body_hash`` tells its body from others."""

    principal: Principal
    route: str
    key: str
    body_hash: str

    @property
    def scope(self) -> str:
        """Whose name it is: the key's or the user's, on one route."""
        principal = self.principal
        owner = f"key:{principal.api_key_id.hex}" if principal.api_key_id else f"user:{principal.user_id}"
        return f"{owner}:{self.route}"


def named(principal: Principal, route: str, key: str, body: Any) -> NamedRequest:
    """A request by its name and its body, which is plain JSON values."""
    return NamedRequest(principal, route, key, hashlib.sha256(canonical_json(body)).hexdigest())


def earlier(request: NamedRequest) -> IdempotencyKey | None:
    """What the name stands for already, if anything. Raises ``BodyDiffers``."""
    with tenant_scope(request.principal.tenant_id):
        row: IdempotencyKey | None = (
            IdempotencyKey.objects.select_related("generation__model", "generation__lane")
            .filter(scope=request.scope, key=request.key, created_at__gt=timezone.now() - KEPT)
            .first()
        )
    if row is None or _is_unread(row.generation):
        return None
    if row.body_hash != request.body_hash:
        raise BodyDiffers
    return row


@contextmanager
def one_at_a_time(request: NamedRequest) -> Iterator[bool]:
    """Around the admission of a request whose name stands for nothing yet: its repeats wait here until it is decided.

    What is taken before the name is written (rates, a place in the queue) is then taken once, however many come at the
    same time. Yields whether it had to wait: the name may stand for something since. Raises ``redis.RedisError``.
    """
    name = hashlib.sha256(
        f"{request.principal.tenant_id.hex}:{request.scope}:{request.key}".encode()
    ).hexdigest()
    waited, until = False, time.monotonic() + _ADMITTED_WITHIN_S
    pause_s, longest_s = _LOOK_AGAIN_S
    while True:
        mark = sole_passes.begin(f"named:{name}", at_most_s=_ADMITTED_WITHIN_S)
        if mark is not None or time.monotonic() > until:
            break
        if not waited:
            # There are few connections, and whoever is admitted needs one.
            connections.close_all()
        waited = True
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, longest_s)
    try:
        yield waited
    finally:
        if mark is not None:
            sole_passes.end(mark)


def claim(request: NamedRequest) -> Callable[[Generation], None]:
    """What writes the name beside a generation, in the transaction that accepts it. Raises ``AlreadyMade`` there."""

    def write(generation: Generation) -> None:
        _write(request, generation=generation)

    return write


def make_once(request: NamedRequest, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What ``make`` answers, kept under the request's name in the same transaction.

    Raises ``AlreadyMade`` when another request of this name was faster, and whatever ``make`` raises: nothing is kept.
    """
    with tenant_scope(request.principal.tenant_id), transaction.atomic():
        # Before anything is made: whoever comes second waits here, and holds nothing that the first one needs.
        row = _write(request, answer={})
        row.answer = make()
        row.save(update_fields=["answer"])
    return row.answer


def delete_old() -> int:
    """Delete names that stand for nothing any more, of every tenant in scope; how many."""
    deleted: int = IdempotencyKey.objects.filter(created_at__lte=timezone.now() - KEPT).delete()[0]
    return deleted


def _is_unread(generation: Generation | None) -> bool:
    return generation is not None and (generation.state, generation.cancel_reason) == (
        GenerationState.CANCELLED,
        CancelReason.DETACHED,
    )


def _write(request: NamedRequest, **made: Any) -> IdempotencyKey:
    mine = IdempotencyKey.objects.filter(scope=request.scope, key=request.key)
    mine.filter(Q(created_at__lte=timezone.now() - KEPT) | _UNREAD).delete()
    try:
        row: IdempotencyKey = IdempotencyKey.objects.create(
            tenant_id=request.principal.tenant_id,
            scope=request.scope,
            key=request.key,
            body_hash=request.body_hash,
            **made,
        )
    except IntegrityError as error:
        raise AlreadyMade from error
    return row
