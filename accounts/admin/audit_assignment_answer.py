"""Who ran in which lane on which days, answered above the list of assignments: by what right, by whose grant, and
whether anybody has touched the record since.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from django.http import HttpRequest
from django.utils import timezone

from accounts.admin.audit_condition import Verified, last_held, verified
from accounts.admin.audit_filters import Days, DaysFilter
from accounts.admin.audit_grants import Grant, grants_of
from accounts.audit import assignment_proofs
from accounts.audit.assignment_proofs import Held
from accounts.audit.lane_use import Use, uses_in
from accounts.formatting import counted
from accounts.models import AuditVerification, SealedAssignment

#: Days that are summed up; a longer time is only listed.
MOST_DAYS: Final = 31
#: Assignments whose records are checked for an answer; of more, those of the page are.
MOST_CHECKED: Final = 2_000


@dataclass(frozen=True, slots=True)
class UseShown:
    """Who ran how often, and how the right came about; None: the entitlement is not there any more."""

    use: Use
    grant: Grant | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """``touched``: what came of looking at the records, in words; ``untouched``: nobody has changed any."""

    question: str
    uses: Sequence[UseShown]
    more: int
    touched: Sequence[str]
    untouched: bool
    last: Verified | None
    #: Whether the last verification that held has seen all of these.
    verified_all: bool
    zone: str


def answer_of(request: HttpRequest, page: Any) -> Answer | None:
    """The answer for what a page of the list is narrowed to; None: to no days, or too many."""
    days = next((spec.days for spec in page.filter_specs if isinstance(spec, DaysFilter)), None)
    if days is None or days.count > MOST_DAYS:
        return None
    checked = list(page.queryset.order_by("created_at")[: MOST_CHECKED + 1])
    whole = len(checked) <= MOST_CHECKED
    if not whole:
        checked = page.result_list
    standings = Counter(assignment_proofs.standings(checked, timezone.now()).values())
    uses = uses_in(page.queryset)
    held = last_held()
    newest = AuditVerification.objects.order_by("-started_at").first()
    return Answer(
        question=_question(request, days),
        uses=_shown(uses.listed),
        more=uses.more,
        touched=_touched(standings, whole=whole),
        untouched=not standings[Held.NO],
        last=verified(newest) if newest else None,
        verified_all=held is not None and _last_batch(checked) <= held.last_sequence,
        zone=days.zone.key,
    )


def _shown(uses: Sequence[Use]) -> list[UseShown]:
    rights = {use.right.row.id: use.right for use in uses if use.right is not None}
    grants = dict(zip(rights, grants_of(rights.values()), strict=True))
    return [UseShown(use, grants.get(use.entitlement_id)) for use in uses]


def _question(request: HttpRequest, days: Days) -> str:
    lane = request.GET.get("given_lane")
    where = f"in {lane}" if lane else "in any lane"
    return f"Who ran {where} {'on' if days.count == 1 else 'from'} {days}"


def _touched(standings: Counter[Held], *, whole: bool) -> list[str]:
    """What was found of the records that were looked at."""
    total = sum(standings.values())
    if not total:
        return []
    which = (
        (f"All {counted(total, 'record')}" if total > 1 else "The one record")
        if whole
        else f"The {counted(total, 'record')} of this page"
    )
    said = []
    if standings[Held.YES] == total:
        return [
            f"{which} {'is' if total == 1 else 'are'} what was sealed: compared just now with their batches' roots."
        ]
    said.append(
        f"{counted(standings[Held.YES], 'record')} of {total} are what was sealed: compared just now."
    )
    if standings[Held.NO]:
        said.append(
            f"{counted(standings[Held.NO], 'record')} {'is' if standings[Held.NO] == 1 else 'are'} not what was sealed."
        )
    if standings[Held.NOT_YET]:
        said.append(f"{counted(standings[Held.NOT_YET], 'record')} wait to be sealed, for a second or two.")
    return said


def _last_batch(assignments: Sequence[Any]) -> int:
    batches = SealedAssignment.objects.filter(pk__in=[one.pk for one in assignments])
    return batches.order_by("-batch").values_list("batch", flat=True).first() or 0
