"""In which state an entitlement is at a moment: what people and rules ask of its times and its approval. Pure."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Final

from accounts.models import Approval, Entitlement


class State(StrEnum):
    """Where an entitlement is in its life."""

    #: It gives its rights until it is ended.
    STANDING = "standing"
    #: It gives its rights until a time that is set.
    TEMPORARY = "temporary"
    #: It was granted, and its start is to come.
    NOT_YET = "not_yet"
    #: It waits for a second operator's approval.
    REQUESTED = "requested"
    #: It was refused that.
    REFUSED = "refused"
    #: It was ended before anybody decided.
    WITHDRAWN = "withdrawn"
    #: It was ended, or its time is over.
    ENDED = "ended"


#: What was granted and is not over: it can be changed, extended and ended.
LIVE: Final = frozenset({State.STANDING, State.TEMPORARY, State.NOT_YET})


def state_of(entitlement: Entitlement, now: datetime) -> State:
    """The state of ``entitlement`` at ``now``."""
    over = entitlement.ends_at is not None and entitlement.ends_at <= now
    match entitlement.approval:
        case Approval.REFUSED:
            return State.REFUSED
        case Approval.REQUESTED if entitlement.ended_at is not None:
            return State.WITHDRAWN
        case Approval.REQUESTED:
            return State.ENDED if over else State.REQUESTED
    if entitlement.ended_at is not None or over:
        return State.ENDED
    if entitlement.starts_at is not None and now < entitlement.starts_at:
        return State.NOT_YET
    return State.STANDING if entitlement.ends_at is None else State.TEMPORARY
