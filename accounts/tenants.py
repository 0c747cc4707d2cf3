"""Tenants: made with their standing entitlements, renamed, given a calendar, learned from or not, closed, reopened."""

from __future__ import annotations

from collections.abc import Iterable

from django.core.exceptions import ValidationError
from django.core.validators import validate_slug
from django.db import transaction
from django.utils import timezone

from accounts import audit, entitlements
from accounts.entitlement_terms import Terms
from accounts.models import Lane, Tenant, User
from accounts.principal import Actor
from accounts.refusals import ChangeRefusal, ChangeRefused, checked_text
from accounts.tenancy import tenant_scope
from accounts.time_zones import time_zones

_AUDITED = ("name", "slug", "suffix_pool", "time_zone", "closed_at")


def create(
    *,
    name: str,
    slug: str,
    actor: Actor,
    lanes: Iterable[Lane] | None = None,
    reason: str = "standing entitlement of a new tenant",
    granted_by: User | None = None,
    time_zone: str = "UTC",
) -> Tenant:
    """Make a tenant that is entitled to ``lanes`` (None: every lane there is), without limits.

    Where a lane asks for a second operator's approval of that, it is requested only. Raises ``ChangeRefused``.
    """
    now = timezone.now()
    with transaction.atomic():
        if Tenant.objects.filter(slug=slug).exists():
            raise ChangeRefused(
                ChangeRefusal.NAME_TAKEN,
                f"There is a tenant with the short name {slug!r} already.",
                field="slug",
            )
        tenant = Tenant.objects.create(
            name=checked_text(name, field="name", most=100),
            slug=_checked_slug(slug),
            time_zone=_checked_time_zone(time_zone),
        )
        changes = [
            audit.Change(
                action="tenant.create", obj=tenant, before=None, after=audit.fields_of(tenant, *_AUDITED)
            )
        ]
        with tenant_scope(tenant.id):
            for lane in Lane.objects.all() if lanes is None else lanes:
                _, recorded = entitlements.write_grant(
                    tenant=tenant, lane=lane, terms=Terms(reason=reason), granted_by=granted_by, now=now
                )
                changes.append(recorded)
        audit.record_all(actor, changes)
    return tenant


def rename(*, tenant: Tenant, name: str, actor: Actor) -> Tenant:
    """Change what a tenant is called; its short name stays, because logs and metrics carry it."""
    with transaction.atomic():
        tenant = Tenant.objects.select_for_update(no_key=True).get(id=tenant.id)
        before = audit.fields_of(tenant, *_AUDITED)
        tenant.name = checked_text(name, field="name", most=100)
        after = audit.fields_of(tenant, *_AUDITED)
        if after != before:
            tenant.save(update_fields=["name"])
            audit.record(actor, "tenant.rename", tenant, before, after)
    return tenant


def set_suffix_pool(*, tenant: Tenant, suffix_pool: bool, actor: Actor) -> Tenant:
    """Let workers learn from a tenant's answers how it goes on, for this tenant alone, or no longer.

    Holds for what is admitted from now on. What was learned stays on the workers' disks until it is forgotten there.
    """
    with transaction.atomic():
        tenant = Tenant.objects.select_for_update(no_key=True).get(id=tenant.id)
        before = audit.fields_of(tenant, *_AUDITED)
        tenant.suffix_pool = suffix_pool
        after = audit.fields_of(tenant, *_AUDITED)
        if after != before:
            tenant.save(update_fields=["suffix_pool"])
            audit.record(actor, "tenant.set_suffix_pool", tenant, before, after)
    return tenant


def set_time_zone(*, tenant: Tenant, time_zone: str, actor: Actor) -> Tenant:
    """Keep the tenant's budgets by the calendar of another zone, as in Asia/Seoul.

    Windows that have begun run to their end; the next ones are of the new zone. Raises ``ChangeRefused``.
    """
    with transaction.atomic():
        tenant = Tenant.objects.select_for_update(no_key=True).get(id=tenant.id)
        before = audit.fields_of(tenant, *_AUDITED)
        if time_zone != tenant.time_zone:  # one that is no longer offered may stay
            tenant.time_zone = _checked_time_zone(time_zone)
        after = audit.fields_of(tenant, *_AUDITED)
        if after != before:
            tenant.save(update_fields=["time_zone"])
            audit.record(actor, "tenant.set_time_zone", tenant, before, after)
    return tenant


def close(*, tenant: Tenant, actor: Actor) -> Tenant:
    """Stop everything of a tenant: its keys and members are refused, its running generations are cancelled.

    Its rows stay: the ledger and the audit name them. Closing a closed tenant changes nothing.
    """
    return _set_closed(tenant, True, "tenant.close", actor)


def reopen(*, tenant: Tenant, actor: Actor) -> Tenant:
    """Undo ``close``: keys that were neither revoked nor expired work again."""
    return _set_closed(tenant, False, "tenant.reopen", actor)


def _set_closed(tenant: Tenant, closed: bool, action: str, actor: Actor) -> Tenant:
    with transaction.atomic():
        tenant = Tenant.objects.select_for_update(no_key=True).get(id=tenant.id)
        if bool(tenant.closed_at) != closed:
            before = audit.fields_of(tenant, *_AUDITED)
            tenant.closed_at = timezone.now() if closed else None
            tenant.save(update_fields=["closed_at"])
            audit.record(actor, action, tenant, before, audit.fields_of(tenant, *_AUDITED))
    return tenant


def _checked_time_zone(time_zone: str) -> str:
    if time_zone not in time_zones():
        raise ChangeRefused(
            ChangeRefusal.INVALID,
            f"There is no time zone {time_zone!r}. Name one as in Asia/Seoul, Europe/Berlin or UTC.",
            field="time_zone",
        )
    return time_zone


def _checked_slug(slug: str) -> str:
    try:
        validate_slug(slug)
    except ValidationError as error:
        raise ChangeRefused(
            ChangeRefusal.INVALID,
            f"A short name has letters, digits, hyphens and underscores only; this is {slug!r}.",
            field="slug",
        ) from error
    return checked_text(slug, field="slug", most=60)
