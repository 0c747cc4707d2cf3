"""What a grant or a change of one does, for whoever decides it: before and after, what is used, who is touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo

from django.db.models import Q
from django.utils import timezone

from accounts import entitlements
from accounts.admin.entitlement_words import reset_words, term_changes
from accounts.admin.trail import FieldChange
from accounts.consumption import Consumption, read
from accounts.entitlement_terms import Terms
from accounts.formatting import counted, exactly, number
from accounts.lane_resolution import TENANT_DEFAULT_LANE
from accounts.limits import LimitName, Limits
from accounts.models import Allowance, ApiKey, Approval, Entitlement, Lane, Membership, Tenant
from accounts.models.entitlement import GIVING
from accounts.tenancy import tenant_scope

#: So many of the keys that are touched are named.
_NAMED_KEYS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A grant in ``lane`` of ``tenant``, or a change of ``entitlement``, as the verb would write it.

    ``before`` None: nothing was granted. ``requested``: it would wait for a second operator's approval.
    """

    tenant: Tenant
    lane: str
    entitlement: Entitlement | None
    before: Terms | None
    after: Terms
    requested: bool
    #: The row that asks for it, where there is one already.
    request: Entitlement | None = None


@dataclass(frozen=True, slots=True)
class LimitEffect:
    """One limit: what it was and would be, in words, and where it would stand."""

    row: Consumption
    before: str
    after: str
    #: When the window that it is counted in ends.
    resets: str

    @property
    def title(self) -> str:
        """What the limit is called."""
        return self.row.title

    @property
    def changed(self) -> bool:
        """Whether it would be another one."""
        return self.before != self.after

    @property
    def rows(self) -> Sequence[Consumption]:
        """For the template that draws consumption."""
        return (self.row,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Effect:
    """What is shown of a ``Plan``. Times are told in the tenant's own zone, ``zone``."""

    plan: Plan
    zone: ZoneInfo
    fields: Sequence[FieldChange]
    limits: Sequence[LimitEffect]
    #: What is used up at once, and until when.
    warnings: Sequence[str]
    touched: Sequence[str]
    approval: str

    @property
    def changes(self) -> bool:
        """Whether it does anything."""
        return self.plan.before != self.plan.after


def planned(
    write: Callable[[], Entitlement], *, tenant: Tenant, lane: str, entitlement: Entitlement | None
) -> tuple[Plan, str]:
    """What ``write`` would do, found by doing it, and the version of all that it went by.

    The caller rolls the transaction back. Raises what ``write`` raises.
    """
    with tenant_scope(tenant.id):
        # Read first: what is committed between this and the verb's lock makes the version an old one, which is safe.
        version = entitlements.version_of(tenant, lane, timezone.now())
        before = (
            Terms.of(Entitlement.objects.select_related("allowance").get(id=entitlement.id))
            if entitlement is not None
            else None
        )
    written = write()
    plan = Plan(
        tenant=tenant,
        lane=lane,
        entitlement=entitlement,
        before=before,
        after=Terms.of(written),
        requested=written.approval == Approval.REQUESTED,
    )
    return plan, version


def plan_of_request(entitlement: Entitlement) -> Plan:
    """What approving a requested ``entitlement``, which has its tenant and allowance with it, does."""
    replaced = entitlement.replaces
    return Plan(
        tenant=entitlement.tenant,
        lane=entitlement.lane_id,
        entitlement=replaced,
        before=Terms.of(replaced) if replaced is not None else None,
        after=Terms.of(entitlement),
        requested=True,
        request=entitlement,
    )


def effect_of(plan: Plan, now: datetime) -> Effect:
    """Read what ``plan`` would do at ``now``."""
    zone = ZoneInfo(plan.tenant.time_zone)
    with tenant_scope(plan.tenant.id), timezone.override(zone):
        rows = read(_allowance(plan), now)
        return Effect(
            plan=plan,
            zone=zone,
            fields=term_changes(plan.before, plan.after),
            limits=[
                LimitEffect(
                    row,
                    _limit(plan.before.limits, row.name) if plan.before is not None else "",
                    _limit(plan.after.limits, row.name),
                    reset_words(row),
                )
                for row in rows
            ],
            warnings=list(_warnings(rows)),
            touched=list(_touched(plan, now)),
            approval=_approval(plan, now),
        )


def _allowance(plan: Plan) -> Allowance:
    """The allowance as it would be: what is used of it stays used."""
    allowance = copy(plan.entitlement.allowance) if plan.entitlement is not None else Allowance()
    allowance.tenant = plan.tenant
    for name in LimitName:
        setattr(allowance, name.value, plan.after.limits.of(name))
    return allowance


def _limit(limits: Limits, name: LimitName) -> str:
    limit = limits.of(name)
    return "no limit" if limit is None else number(limit)


def _warnings(rows: Sequence[Consumption]) -> Iterator[str]:
    for row in rows:
        if row.limit == 0:
            yield f"{row.title}: none at all. Nothing is admitted by this entitlement."
        elif row.mark in ("over", "full") and row.state is not None and row.limit is not None:
            until = (
                f"until {exactly(row.state.resets_at)}"
                if row.state.resets_at is not None
                else "until enough of what runs has ended"
            )
            yield (
                f"{row.title}: {number(row.state.used)} are used already, and {number(row.limit)} would be allowed. "
                f"Nothing is admitted by this entitlement {until}."
            )


def _touched(plan: Plan, now: datetime) -> Iterator[str]:
    live = plan.entitlement.allowance.live_generations if plan.entitlement is not None else 0
    yield (
        f"{counted(live, 'generation')} {'runs or waits' if live == 1 else 'run or wait'} by this right, and "
        f"{'keeps what it was' if live == 1 else 'keep what they were'} admitted with."
        if live
        else "Nothing runs or waits by this right now."
    )
    yield f"{counted(Membership.objects.filter(ended_at=None).count(), 'member')} of {plan.tenant}, in the browser."
    yield from _keys(plan, now)
    feeding = list(
        entitlements.going_on(now)
        .filter(step_down_to=plan.lane, approval__in=GIVING)
        .order_by("lane__rank")
        .values_list("lane", flat=True)
    )
    if feeding:
        yield f"Requests that do not fit in {_and(dict.fromkeys(feeding))} come down to this lane."


def _keys(plan: Plan, now: datetime) -> Iterator[str]:
    working = ApiKey.objects.filter(Q(expires_at=None) | Q(expires_at__gt=now), revoked_at=None).order_by(
        "name"
    )
    by_default, allowed = [], 0
    for name, default_lane, allowed_lanes in working.values_list("name", "default_lane", "allowed_lanes"):
        if not allowed_lanes or plan.lane in allowed_lanes:
            allowed += 1
            if (default_lane or TENANT_DEFAULT_LANE) == plan.lane:
                by_default.append(name)
    yield f"{counted(allowed, 'key')} may use this lane."
    if by_default:
        more = len(by_default) - _NAMED_KEYS
        named = [*by_default[:_NAMED_KEYS], *([f"{number(more)} more"] if more > 0 else [])]
        yield f"It is the lane of {_and(named)} where a request asks for none."


def _approval(plan: Plan, now: datetime) -> str:
    above = Lane.objects.values_list("approval_above_tokens", flat=True).get(name=plan.lane)
    if above is None:
        return "" if not plan.requested else "It was requested when this lane asked for a second operator."
    besides = [row for row in (plan.entitlement, plan.request) if row is not None]
    total = entitlements.total_with(plan.lane, plan.after.limits, now, besides=besides)
    size = f"{number(total)} tokens a month" if total is not None else "tokens without limit"
    rule = "always" if above == 0 else f"above {number(above)} tokens a month"
    together = f"All live and requested grants of {plan.tenant} in {plan.lane} come to {size} with this."
    if plan.requested:
        meanwhile = " Until then the present entitlement stays as it is." if plan.before is not None else ""
        return (
            f"{together} This lane takes a second operator's approval {rule}: it is requested now, and gives nothing "
            f"before another operator has approved it.{meanwhile}"
        )
    return f"{together} This lane takes a second operator's approval {rule}, and none for this."


def _and(names: Sequence[str] | dict[str, None]) -> str:
    *most, last = names
    return f"{', '.join(most)} and {last}" if most else last
