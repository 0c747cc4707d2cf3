"""What an entitlement says, as a plain value: what is checked of it, and whether a change widens it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Self

from accounts.allowances import UNLIMITED
from accounts.limits import LimitName, Limits
from accounts.models import Entitlement, OnExhausted
from accounts.refusals import ChangeRefusal, ChangeRefused, checked_text

#: The largest weight of a tenant in a lane.
MOST_WEIGHT = 1000
#: The longest queue wait that can be set, in seconds: what all supported databases store.
LONGEST_WAIT_S = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Everything that is granted with a lane, and why. ``step_down_to`` is a lane's name."""

    limits: Limits = UNLIMITED
    starts_at: datetime | None = None
    ends_at: datetime | None = None
    weight: int = 1
    speculation: bool = True
    longest_queue_wait_s: int | None = None
    on_exhausted: OnExhausted = OnExhausted.REFUSE
    step_down_to: str | None = None
    reason: str = ""

    @classmethod
    def of(cls, entitlement: Entitlement) -> Self:
        """The terms of a row that has its allowance with it."""
        return cls(
            limits=entitlement.allowance.limits,
            starts_at=entitlement.starts_at,
            ends_at=entitlement.ends_at,
            weight=entitlement.weight,
            speculation=entitlement.speculation,
            longest_queue_wait_s=entitlement.longest_queue_wait_s,
            on_exhausted=OnExhausted(entitlement.on_exhausted),
            step_down_to=entitlement.step_down_to_id,
            reason=entitlement.reason,
        )

    @property
    def standing(self) -> bool:
        """Whether it holds until somebody ends it."""
        return self.ends_at is None

    def columns(self) -> dict[str, Any]:
        """Its values by the row's own columns; limits are the allowance's."""
        return {
            "starts_at": self.starts_at,
            "ends_at": self.ends_at,
            "weight": self.weight,
            "speculation": self.speculation,
            "longest_queue_wait_s": self.longest_queue_wait_s,
            "on_exhausted": self.on_exhausted,
            "step_down_to_id": self.step_down_to,
            "reason": self.reason,
        }


def checked(terms: Terms, *, lane: str, ranks: Mapping[str, int], now: datetime) -> Terms:
    """``terms`` as they are stored, if a grant in ``lane`` can have them at ``now``. ``ranks``: of every lane there is.

    Raises ``ChangeRefused``, with the field that is at fault. Limits are checked where they are stored.
    """
    terms = replace(
        terms,
        starts_at=_to_the_second(terms.starts_at),
        ends_at=_to_the_second(terms.ends_at),
        reason=checked_text(terms.reason, field="reason", least=0, most=200),
    )
    if not 1 <= terms.weight <= MOST_WEIGHT:
        raise _invalid(f"A weight is between 1 and {MOST_WEIGHT}; this is {terms.weight}.", "weight")
    wait = terms.longest_queue_wait_s
    if wait is not None and not 1 <= wait <= LONGEST_WAIT_S:
        raise _invalid(
            f"The longest queue wait is 1 second or more, or empty (no such limit); this is {wait}.",
            "longest_queue_wait_s",
        )
    _check_step_down(terms, lane, ranks)
    if terms.ends_at is not None:
        if terms.ends_at <= now:
            raise _invalid(
                "It would be over already. To end what is granted now, end it; otherwise name a later end.",
                "ends_at",
            )
        if terms.starts_at is not None and terms.ends_at <= terms.starts_at:
            raise _invalid("It would end before it starts. Name a later end.", "ends_at")
        if not terms.reason:
            raise _invalid("What is granted for a time has a reason: write down what it is for.", "reason")
    return terms


def widens(before: Terms, after: Terms) -> bool:
    """Whether ``after`` gives anything that ``before`` does not: a higher or no limit, a later or no end, or an
    earlier start. What is only a share (the weight), or how a request is treated, is no more of it.
    """
    limits = any(_higher(before.limits.of(name), after.limits.of(name)) for name in LimitName)
    later = before.ends_at is not None and (after.ends_at is None or after.ends_at > before.ends_at)
    earlier = before.starts_at is not None and (after.starts_at is None or after.starts_at < before.starts_at)
    return limits or later or earlier


def _higher(before: int | None, after: int | None) -> bool:
    return before is not None and (after is None or after > before)


def _check_step_down(terms: Terms, lane: str, ranks: Mapping[str, int]) -> None:
    steps_down = terms.on_exhausted == OnExhausted.STEP_DOWN
    if steps_down and terms.step_down_to is None:
        raise _invalid("Name the lane that requests go down to.", "step_down_to")
    if not steps_down and terms.step_down_to is not None:
        raise _invalid(
            "Requests that do not fit are refused, so that there is no lane to go down to. Leave it empty, or let "
            "them go to a lower lane.",
            "step_down_to",
        )
    if terms.step_down_to is not None and ranks[terms.step_down_to] <= ranks[lane]:
        raise _invalid(
            f"Requests step down to a lower lane, and {terms.step_down_to} is not lower than {lane}.",
            "step_down_to",
        )


def _to_the_second(at: datetime | None) -> datetime | None:
    return at.replace(microsecond=0) if at is not None else None


def _invalid(message: str, field: str) -> ChangeRefused:
    return ChangeRefused(ChangeRefusal.INVALID, message, field=field)
