"""Lanes: operators may add some beside the three that every installation starts with. A lane is never taken away."""

from __future__ import annotations

from django.core.exceptions import ValidationError
from django.core.validators import validate_slug
from django.db import transaction
from django.db.models import Q, QuerySet, Subquery

from accounts import allowances, audit
from accounts.lane_resolution import AUTO, TENANT_DEFAULT_LANE
from accounts.models import Lane
from accounts.principal import Actor
from accounts.refusals import ChangeRefusal, ChangeRefused, checked_text

_AUDITED = ("name", "rank", "service_tier", "description", "approval_above_tokens")


def add(
    *,
    name: str,
    rank: int,
    service_tier: str,
    description: str,
    actor: Actor,
    approval_above_tokens: int | None = None,
) -> Lane:
    """Add a lane that is served after those of lower rank. Raises ``ChangeRefused``.

    Clients ask for a lane by its name or its service tier, so no two lanes may share either.
    """
    with transaction.atomic():
        for field, text in (("name", name), ("service_tier", service_tier)):
            _check_word(text, field)
            if Lane.objects.filter(Q(name=text) | Q(service_tier=text)).exists():
                raise ChangeRefused(
                    ChangeRefusal.NAME_TAKEN,
                    f"There is a lane or service tier {text!r} already.",
                    field=field,
                )
        if not 0 <= rank <= 1000:
            raise ChangeRefused(
                ChangeRefusal.INVALID, f"A rank is between 0 and 1000; this is {rank}.", field="rank"
            )
        if Lane.objects.filter(rank=rank).exists():
            raise ChangeRefused(
                ChangeRefusal.NAME_TAKEN, f"There is a lane of rank {rank} already.", field="rank"
            )
        lane = Lane.objects.create(
            name=name,
            rank=rank,
            service_tier=service_tier,
            description=checked_text(description, field="description", least=0, most=200),
            approval_above_tokens=_checked_approval(approval_above_tokens),
        )
        audit.record(actor, "lane.add", lane, None, audit.fields_of(lane, *_AUDITED))
    return lane


def describe(*, lane: Lane, description: str, actor: Actor) -> Lane:
    """Change a lane's description; name, rank and service tier are what requests and records go by, and stay."""
    with transaction.atomic():
        lane = Lane.objects.select_for_update(no_key=True).get(name=lane.name)
        before = audit.fields_of(lane, *_AUDITED)
        lane.description = checked_text(description, field="description", least=0, most=200)
        after = audit.fields_of(lane, *_AUDITED)
        if after != before:
            lane.save(update_fields=["description"])
            audit.record(actor, "lane.describe", lane, before, after)
    return lane


def set_approval(*, lane: Lane, approval_above_tokens: int | None, actor: Actor) -> Lane:
    """Ask for a second operator where a tenant's grants in ``lane`` come to more than so many tokens a month.

    None: never; 0: always. Holds for what is granted or widened from now on. Raises ``ChangeRefused``.
    """
    with transaction.atomic():
        lane = Lane.objects.select_for_update(no_key=True).get(name=lane.name)
        before = audit.fields_of(lane, *_AUDITED)
        lane.approval_above_tokens = _checked_approval(approval_above_tokens)
        after = audit.fields_of(lane, *_AUDITED)
        if after != before:
            lane.save(update_fields=["approval_above_tokens"])
            audit.record(actor, "lane.set_approval", lane, before, after)
    return lane


def _checked_approval(above: int | None) -> int | None:
    if above is not None and not 0 <= above <= allowances.MOST:
        raise ChangeRefused(
            ChangeRefusal.INVALID,
            f"Approval is asked for above 0 tokens a month or more, or never (empty); this is {above}.",
            field="approval_above_tokens",
        )
    return above


def from_normal_down() -> QuerySet[Lane]:
    """The lanes that a tenant may be given without a thought: one above normal goes before everybody else's work."""
    normal = Lane.objects.filter(name=TENANT_DEFAULT_LANE).values("rank")
    return Lane.objects.filter(rank__gte=Subquery(normal))


def _check_word(text: str, field: str) -> None:
    try:
        validate_slug(text)
    except ValidationError as error:
        raise ChangeRefused(
            ChangeRefusal.INVALID,
            "It has letters, digits, hyphens and underscores only, and is not empty.",
            field=field,
        ) from error
    checked_text(text, field=field, most=30)
    if text == AUTO:
        raise ChangeRefused(
            ChangeRefusal.INVALID, f"{AUTO!r} is what clients say for no lane in particular.", field=field
        )
