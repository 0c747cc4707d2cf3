"""What the admin calls the states and the terms of entitlements, on every page that shows them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from django.contrib.admin import SimpleListFilter
from django.db.models import Q, QuerySet
from django.http import HttpRequest
from django.utils import timezone

from accounts.admin.trail import FieldChange
from accounts.consumption import Consumption
from accounts.entitlement_states import State, state_of
from accounts.entitlement_terms import Terms
from accounts.formatting import counted, exactly
from accounts.models import Approval, Entitlement, OnExhausted
from accounts.models.entitlement import GIVING

#: The state of a row in a list, and how the theme marks it.
STATE_TITLES: Final[Mapping[State, str]] = {
    State.STANDING: "Standing",
    State.TEMPORARY: "Temporary",
    State.NOT_YET: "Not yet",
    State.REQUESTED: "Waits for approval",
    State.REFUSED: "Refused",
    State.WITHDRAWN: "Withdrawn",
    State.ENDED: "Ended",
}
STATE_LABELS: Final = {
    "Standing": "success",
    "Temporary": "success",
    "Not yet": "info",
    "Waits for approval": "warning",
    "Refused": "danger",
    "Withdrawn": "default",
    "Ended": "default",
}


def state_words(entitlement: Entitlement) -> tuple[str, str]:
    """Which state an entitlement is in, and the words for it: a time that it goes by is said."""
    state = state_of(entitlement, timezone.now())
    title = STATE_TITLES[state]
    match state:
        case State.TEMPORARY if entitlement.ends_at is not None:
            return title, f"{title}, until {exactly(entitlement.ends_at)}"
        case State.NOT_YET if entitlement.starts_at is not None:
            return title, f"{title}: from {exactly(entitlement.starts_at)}"
        case _:
            return title, title


class EntitlementStateFilter(SimpleListFilter):
    """Of entitlements: which give their rights now, and which wait for somebody."""

    title = "state"
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            ("gives", "Gives its rights"),
            ("not_yet", "Not yet"),
            ("requested", "Waits for approval"),
            ("refused", "Refused"),
            ("ended", "Ended"),
        ]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> QuerySet[Any]:
        now = timezone.now()
        going_on = Q(ended_at=None) & (Q(ends_at=None) | Q(ends_at__gt=now))
        granted, begun = Q(approval__in=GIVING), Q(starts_at=None) | Q(starts_at__lte=now)
        match self.value():
            case "gives":
                return queryset.filter(going_on & granted & begun)
            case "not_yet":
                return queryset.filter(going_on & granted & ~begun)
            case "requested":
                return queryset.filter(going_on, approval=Approval.REQUESTED)
            case "refused":
                return queryset.filter(approval=Approval.REFUSED)
            case "ended":
                return queryset.filter(~going_on).exclude(approval=Approval.REFUSED)
            case _:
                return queryset


def term_changes(before: Terms | None, after: Terms) -> list[FieldChange]:
    """What ``after`` says other than ``before``, limits aside, as people say it; None: all that is granted anew."""
    changes = []
    for name, words in _WORDS.items():
        old = words(before) if before is not None else ""
        new = words(after)
        if new != old:
            changes.append(FieldChange(name, old, new, before is not None))
    return changes


def reset_words(row: Consumption) -> str:
    """When the window of a budget ends, in the current time zone; empty for what has no calendar window."""
    if not row.name.is_budget or row.state is None or row.state.resets_at is None:
        return ""
    return f"Its window ends {exactly(row.state.resets_at)}."


def _yes(flag: bool) -> str:
    return "yes" if flag else "no"


_WORDS: Final[Mapping[str, Callable[[Terms], str]]] = {
    "Weight": lambda terms: str(terms.weight),
    "Speculates": lambda terms: _yes(terms.speculation),
    "Starts": lambda terms: exactly(terms.starts_at) if terms.starts_at else "at once",
    "Ends": lambda terms: exactly(terms.ends_at) if terms.ends_at else "never: until it is ended",
    "When it is exhausted": lambda terms: (
        f"down to {terms.step_down_to}" if terms.step_down_to else str(OnExhausted(terms.on_exhausted).label)
    ),
    "Longest queue wait": lambda terms: (
        counted(terms.longest_queue_wait_s, "second") if terms.longest_queue_wait_s else "no limit"
    ),
    "Reason": lambda terms: terms.reason or "none",
}
