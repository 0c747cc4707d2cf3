"""API keys: made, rotated with an overlap, changed, revoked. The text of a key is returned once and stored nowhere."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db import transaction
from django.utils import timezone

from accounts import allowances, audit, key_text, pepper
from accounts.models import Allowance, ApiKey, Lane, Scope, Tenant, User
from accounts.principal import Actor
from accounts.refusals import ChangeRefusal, ChangeRefused, checked_text
from accounts.tenancy import tenant_scope

DEFAULT_SCOPES = (Scope.INFERENCE, Scope.READ)
#: What there are routes for. A key may hold more, for the day on which there are.
OFFERED_SCOPES = (Scope.INFERENCE, Scope.READ)
#: How long a rotated key works on beside its successor, if nobody says otherwise.
DEFAULT_OVERLAP = timedelta(hours=24)

_AUDITED = ("name", "prefix", "scopes", "default_lane_id", "expires_at", "revoked_at")


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
    expires_at: datetime | None = None,
    created_by: User | None = None,
) -> IssuedKey:
    """Give ``tenant`` a new key. Raises ``ChangeRefused`` for a closed tenant or an impossible key."""
    now = timezone.now()
    with tenant_scope(tenant.id), transaction.atomic():
        tenant = Tenant.objects.select_for_update(no_key=True).get(id=tenant.id)
        if tenant.closed_at:
            raise ChangeRefused(ChangeRefusal.TENANT_CLOSED, f"{tenant} is closed: it gets no new keys.")
        issued = _issue(
            tenant=tenant,
            name=checked_text(name, field="name", most=100),
            allowance=allowances.create(tenant),
            scopes=_checked_scopes(scopes),
            default_lane=default_lane,
            expires_at=_checked_expiry(expires_at, now),
            created_by=created_by,
        )
        audit.record(actor, "api_key.create", issued.key, None, audit.fields_of(issued.key, *_AUDITED))
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

    Whose answer was lost may rotate the same key again: the end of the overlap stays where it was, and a
    successor that nobody has used ends with it. Raises ``ChangeRefused`` for a key that no longer works, and for one
    whose successor is in use: that one is then to be rotated.
    """
    if overlap < timedelta(0):
        raise ChangeRefused(ChangeRefusal.INVALID, "The overlap cannot be negative.", field="overlap")
    now = timezone.now()
    with tenant_scope(key.tenant_id), transaction.atomic():
        key = _locked(key)
        _refuse_unless_working(key, now)
        changes: list[audit.Change] = []
        end = min(now + overlap, key.expires_at) if key.expires_at else now + overlap
        successors = list(key.rotated_to.select_for_update(no_key=True).order_by("-created_at"))
        # A rotated key's own expiry has become the overlap's end: what it was stands in its newest successor.
        expires_at = successors[0].expires_at if successors else key.expires_at
        for successor in successors:
            if successor.revoked_at:
                continue
            if successor.last_used_at:
                raise ChangeRefused(
                    ChangeRefusal.KEY_ALREADY_ROTATED,
                    f"{key.name} was rotated already, and its successor sb_{successor.prefix}… is in use. "
                    "Rotate that one.",
                )
            changes.append(_expire(successor, end, "api_key.expire"))
        issued = _issue(
            tenant=key.tenant,
            name=key.name,
            allowance=key.allowance,
            scopes=key.scopes,
            default_lane=key.default_lane,
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
                after={**audit.fields_of(issued.key, *_AUDITED), "rotated_from": key.prefix},
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
) -> ApiKey:
    """Change what a working key is called and may do. Raises ``ChangeRefused``."""
    now = timezone.now()
    with tenant_scope(key.tenant_id), transaction.atomic():
        key = _locked(key)
        _refuse_unless_working(key, now)
        before = audit.fields_of(key, *_AUDITED)
        key.name = checked_text(name, field="name", most=100)
        key.scopes = _checked_scopes(scopes)
        key.default_lane = default_lane
        if expires_at != key.expires_at:
            key.expires_at = _checked_expiry(expires_at, now)
        after = audit.fields_of(key, *_AUDITED)
        if after != before:
            key.save(update_fields=["name", "scopes", "default_lane", "expires_at"])
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


def _issue(
    *,
    tenant: Tenant,
    name: str,
    allowance: Allowance,
    scopes: list[str],
    default_lane: Lane | None,
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
        scopes=scopes,
        default_lane=default_lane,
        expires_at=expires_at,
        created_by=created_by,
        rotated_from=rotated_from,
    )
    return IssuedKey(key=key, raw=str(text))


def _locked(key: ApiKey) -> ApiKey:
    locked: ApiKey = (
        ApiKey.objects.select_for_update(of=("self",), no_key=True)
        .select_related("tenant", "default_lane")
        .get(id=key.id)
    )
    return locked


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


def _checked_scopes(scopes: Iterable[str]) -> list[str]:
    wanted = {str(scope) for scope in scopes}
    unknown = wanted - set(Scope.values)
    if unknown or not wanted:
        given = ", ".join(sorted(unknown)) or "nothing"
        raise ChangeRefused(
            ChangeRefusal.INVALID,
            f"A key's scopes are one or more of {', '.join(Scope.values)}; this names {given}.",
            field="scopes",
        )
    return [scope for scope in Scope.values if scope in wanted]


def _checked_expiry(expires_at: datetime | None, now: datetime) -> datetime | None:
    if expires_at is not None and expires_at <= now:
        raise ChangeRefused(
            ChangeRefusal.INVALID,
            "A key cannot expire in the past. To end it now, revoke it.",
            field="expires_at",
        )
    return expires_at
