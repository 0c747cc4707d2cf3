"""API keys: made, rotated with an overlap, changed, revoked. The text of a key is returned once and stored nowhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from accounts import allowances, audit, key_giving, key_rights, key_text, pepper, reservations
from accounts.key_rights import Rights
from accounts.limits import Limits
from accounts.models import Allowance, ApiKey, Lane, Scope, Tenant, User
from accounts.principal import Actor
from accounts.refusals import ChangeRefusal, ChangeRefused, checked_text
from accounts.tenancy import tenant_scope

DEFAULT_SCOPES = (Scope.INFERENCE, Scope.READ)
#: What whoever administers a tenant may give to its keys. Platform operators may give every scope that there is.
OFFERED_SCOPES = (Scope.INFERENCE, Scope.READ, Scope.ADMIN)
#: How long a rotated key works on beside its successor, if nobody says otherwise.
DEFAULT_OVERLAP = timedelta(hours=24)

_AUDITED = (
    "name",
    "prefix",
    "scopes",
    "default_lane_id",
    "allowed_lanes",
    "allowed_models",
    "allowed_networks",
    "expires_at",
    "revoked_at",
)


@dataclass(frozen=True, slots=True)
class IssuedKey:
    """A new key's row and, this once, its text. The text is not in the ``repr``."""

    key: ApiKey
    raw: str = field(repr=False)


def create(
    *,
    tenant: Tenant,
    name: str,
    actor: Actor,
    scopes: Iterable[str] = DEFAULT_SCOPES,
    default_lane: Lane | None = None,
    allowed_lanes: Iterable[str] = (),
    allowed_models: Iterable[str] = (),
    allowed_networks: Iterable[str] = (),
    limits: Limits = allowances.UNLIMITED,
    expires_at: datetime | None = None,
    created_by: User | None = None,
) -> IssuedKey:
    """Give ``tenant`` a new key. It narrows what the tenant has: lists that are empty, and limits not set, do not.

    Raises ``ChangeRefused`` for a closed tenant, an impossible key, and scopes that ``actor`` may not give.
    """
    now = timezone.now()
    rights = key_rights.checked(
        scopes=scopes,
        default_lane=default_lane,
        allowed_lanes=allowed_lanes,
        allowed_models=allowed_models,
        allowed_networks=allowed_networks,
    )
    key_rights.require_may_give(rights["scopes"], actor)
    with tenant_scope(tenant.id), transaction.atomic():
        tenant = Tenant.objects.select_for_update(no_key=True).get(id=tenant.id)
        if tenant.closed_at:
            raise ChangeRefused(ChangeRefusal.TENANT_CLOSED, f"{tenant} is closed: it gets no new keys.")
        key_giving.require_may_make(rights, expires_at, actor)
        issued = _issue(
            tenant=tenant,
            name=checked_text(name, field="name", most=100),
            allowance=allowances.create(tenant, limits),
            rights=rights,
            expires_at=_checked_expiry(expires_at, now),
            created_by=created_by,
        )
        audit.record(actor, "api_key.create", issued.key, None, _audited(issued.key, limits))
    return issued


def rotate(
    *,
    key: ApiKey,
    actor: Actor,
    overlap: timedelta = DEFAULT_OVERLAP,
    created_by: User | None = None,
) -> IssuedKey:
    """Give ``key`` a successor with the same rights and expiry; both work until ``overlap`` has passed, then the old
    one ends.

    The two share one allowance: what either uses counts for both, so that a rotation gives nobody a second budget.

    Whose answer was lost may rotate the same key again: the end of the overlap stays where it was, and a
    successor that nobody has used ends with it. Raises ``ChangeRefused`` for a key that no longer works, for one
    whose successor is in use or was given other rights (that one is then to be rotated), and for scopes that ``actor``
    may not give.
    """
    if overlap < timedelta(0):
        raise ChangeRefused(ChangeRefusal.INVALID, "The overlap cannot be negative.", field="overlap")
    now = timezone.now()
    with tenant_scope(key.tenant_id), transaction.atomic():
        key = _locked(key)
        _refuse_unless_working(key, now)
        key_rights.require_may_give(key.scopes, actor)
        changes: list[audit.Change] = []
        end = min(now + overlap, key.expires_at) if key.expires_at else now + overlap
        successors = list(key.rotated_to.select_for_update(no_key=True).order_by("-created_at"))
        # A rotated key's own expiry has become the overlap's end: what it was stands in its newest successor.
        expires_at = successors[0].expires_at if successors else key.expires_at
        handed_on = bool(successors) and successors[0].revoked_at is None
        key_giving.require_may_rotate(key, expires_at, actor, handed_on=handed_on)
        for successor in successors:
            if successor.revoked_at:
                continue
            changed = key_rights.rights_of(successor) != key_rights.rights_of(key)
            if successor.last_used_at or changed:
                since = "is in use" if successor.last_used_at else "may do something else since"
                raise ChangeRefused(
                    ChangeRefusal.KEY_ALREADY_ROTATED,
                    f"{key.name} was rotated already, and its successor sb_{successor.prefix}… {since}. "
                    "Rotate that one.",
                )
            changes.append(_expire(successor, end, "api_key.expire"))
        issued = _issue(
            tenant=key.tenant,
            name=key.name,
            allowance=key.allowance,
            rights=key_rights.rights_of(key),
            expires_at=expires_at,
            created_by=created_by,
            rotated_from=key,
        )
        changes.append(_expire(key, end, "api_key.rotate"))
        changes.append(
            audit.Change(
                action="api_key.create",
                obj=issued.key,
                before=None,
                after={**_audited(issued.key, key.allowance.limits), "rotated_from": key.prefix},
            )
        )
        audit.record_all(actor, changes)
    return issued


def change(
    *,
    key: ApiKey,
    name: str,
    scopes: Iterable[str],
    default_lane: Lane | None,
    expires_at: datetime | None,
    actor: Actor,
    allowed_lanes: Iterable[str] | None = None,
    allowed_models: Iterable[str] | None = None,
    allowed_networks: Iterable[str] | None = None,
    limits: Limits | None = None,
) -> ApiKey:
    """Change what a working key is called and may do, from the next request on. None of the last four: as it is.

    Limits are changed for a key that it was rotated from or to as well: they share them. Raises ``ChangeRefused``.
    """
    now = timezone.now()
    with tenant_scope(key.tenant_id), transaction.atomic():
        key = _locked(key)
        _refuse_unless_working(key, now)
        # Whoever changes a key that shares it waits here, and sees what this one has made of it.
        [allowance] = reservations.lock([key.allowance_id])
        before = _audited(key, allowance.limits)
        rights = key_rights.checked(
            scopes=scopes,
            default_lane=default_lane,
            allowed_lanes=key.allowed_lanes if allowed_lanes is None else allowed_lanes,
            allowed_models=key.allowed_models if allowed_models is None else allowed_models,
            allowed_networks=key.allowed_networks if allowed_networks is None else allowed_networks,
            models_before=key.allowed_models,
        )
        # Also where the key loses such a scope: until then it is an operators' key, and theirs to change.
        key_rights.require_may_give({*key.scopes, *rights["scopes"]}, actor)
        wanted = allowance.limits if limits is None else limits
        key_giving.require_may_change(
            key, before=allowance.limits, rights=rights, expires_at=expires_at, limits=wanted, actor=actor
        )
        key.name = checked_text(name, field="name", most=100)
        for right, value in rights.items():
            setattr(key, right, value)
        if expires_at != key.expires_at:
            key.expires_at = _checked_expiry(expires_at, now)
        after = _audited(key, wanted)
        if after != before:
            if wanted != allowance.limits:
                allowances.change(allowance.id, wanted)
            key.save(update_fields=["name", *rights, "expires_at"])
            audit.record(actor, "api_key.change", key, before, after)
    return key


def revoke(*, key: ApiKey, actor: Actor) -> ApiKey:
    """End ``key`` now: it is refused from the next request on, and its running generations are cancelled.

    Revoking a revoked key changes nothing.
    """
    with tenant_scope(key.tenant_id), transaction.atomic():
        key = _locked(key)
        if key.revoked_at is None:
            before = audit.fields_of(key, *_AUDITED)
            key.revoked_at = timezone.now()
            key.save(update_fields=["revoked_at"])
            audit.record(actor, "api_key.revoke", key, before, audit.fields_of(key, *_AUDITED))
    return key


def rotate_pepper(*, actor: Actor) -> str:
    """Make keys with a new pepper from now on; those made before keep theirs. Returns the new one's id."""
    with transaction.atomic():
        current = pepper.current_id()

        def record(new: str) -> None:
            reference = audit.ObjectRef("pepper", new)
            audit.record(actor, "pepper.rotate", reference, {"pepper_id": current}, {"pepper_id": new})

        return pepper.rotate(record)


def _issue(
    *,
    tenant: Tenant,
    name: str,
    allowance: Allowance,
    rights: Rights,
    expires_at: datetime | None,
    created_by: User | None,
    rotated_from: ApiKey | None = None,
) -> IssuedKey:
    text = key_text.draw()
    pepper_id, digest = pepper.seal(text)
    key = ApiKey.objects.create(
        tenant=tenant,
        name=name,
        allowance=allowance,
        prefix=text.prefix,
        digest=digest,
        pepper_id=pepper_id,
        expires_at=expires_at,
        created_by=created_by,
        rotated_from=rotated_from,
        **rights,
    )
    return IssuedKey(key=key, raw=str(text))


def _locked(key: ApiKey) -> ApiKey:
    locked: ApiKey = (
        ApiKey.objects.select_for_update(of=("self",), no_key=True)
        .select_related("tenant", "default_lane", "allowance")
        .get(id=key.id)
    )
    return locked


def _audited(key: ApiKey, limits: Limits) -> dict[str, Any]:
    return {**audit.fields_of(key, *_AUDITED), **allowances.audited(limits)}


def _expire(key: ApiKey, end: datetime, action: str) -> audit.Change:
    """Let ``key`` end no later than ``end``; the change is the caller's to record."""
    before = audit.fields_of(key, *_AUDITED)
    key.expires_at = min(end, key.expires_at) if key.expires_at else end
    key.save(update_fields=["expires_at"])
    return audit.Change(action=action, obj=key, before=before, after=audit.fields_of(key, *_AUDITED))


def _refuse_unless_working(key: ApiKey, now: datetime) -> None:
    if key.tenant.closed_at:
        raise ChangeRefused(ChangeRefusal.TENANT_CLOSED, f"{key.tenant} is closed: its keys no longer work.")
    if key.revoked_at:
        raise ChangeRefused(ChangeRefusal.KEY_REVOKED, f"{key} is revoked. Make a new key instead.")
    if key.expires_at and key.expires_at <= now:
        raise ChangeRefused(ChangeRefusal.KEY_EXPIRED, f"{key} has expired. Make a new key instead.")


def _checked_expiry(expires_at: datetime | None, now: datetime) -> datetime | None:
    if expires_at is not None and expires_at <= now:
        raise ChangeRefused(
            ChangeRefusal.INVALID,
            "A key cannot expire in the past. To end it now, revoke it.",
            field="expires_at",
        )
    return expires_at
