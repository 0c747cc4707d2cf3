"""From a key, or from a signed-in user and a tenant, to a principal. Asked anew for every request and every frame."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from uuid import UUID

import structlog
from django.utils import timezone

from accounts import key_text, last_used, networks, pepper
from accounts.models import ApiKey, Membership, Role, Scope
from accounts.principal import Principal
from accounts.tenancy import every_tenant
from signalbox.web_metrics import REFUSED_KEYS

_log = structlog.get_logger(__name__)

_SCOPES_OF_ROLE: dict[str, frozenset[str]] = {
    Role.OWNER: frozenset({Scope.INFERENCE, Scope.READ}),
    Role.ADMIN: frozenset({Scope.INFERENCE, Scope.READ}),
    Role.MEMBER: frozenset({Scope.INFERENCE, Scope.READ}),
    Role.VIEWER: frozenset({Scope.READ}),
}


class KeyRefusal(StrEnum):
    """Why a key was refused: for logs and metrics. The client is told one thing only."""

    MALFORMED = "malformed"
    UNKNOWN = "unknown"
    WRONG_SECRET = "wrong_secret"  # noqa: S105 — a code
    REVOKED = "revoked"
    EXPIRED = "expired"
    TENANT_CLOSED = "tenant_closed"
    ADDRESS_NOT_ALLOWED = "address_not_allowed"


class InvalidKey(Exception):
    """The key gives no access. Says the same whatever the reason is, and never the key."""

    def __init__(self, reason: KeyRefusal) -> None:
        super().__init__("The API key is not valid.")
        self.reason = reason


class NotAMember(Exception):
    """The user may not act for the tenant (or there is no such tenant: which of the two is not said)."""

    def __init__(self) -> None:
        super().__init__("You are not a member of this tenant.")


def authenticate_key(raw: str, address: str = "") -> Principal:
    """The principal that the key ``raw`` stands for, used from ``address``; one query. Raises ``InvalidKey``.

    Where the address is not known (empty), a key that is bound to networks gives no access.
    """
    text = key_text.parse(raw)
    if text is None:
        raise _refused(KeyRefusal.MALFORMED)
    with every_tenant("the key says which tenant it is"):
        key = ApiKey.objects.select_related("tenant").filter(prefix=text.prefix).first()
    if key is None:
        pepper.waste(text)
        raise _refused(KeyRefusal.UNKNOWN)
    if not pepper.matches(text, key.pepper_id, key.digest):
        raise _refused(KeyRefusal.WRONG_SECRET, key, address)
    now = timezone.now()
    refusal = refusal_of(key, now)
    if refusal is None and key.allowed_networks and not networks.contains(key.allowed_networks, address):
        refusal = KeyRefusal.ADDRESS_NOT_ALLOWED
    if refusal is not None:
        raise _refused(refusal, key, address)
    last_used.note(key, now)
    return Principal(
        tenant_id=key.tenant_id,
        tenant_name=key.tenant.name,
        scopes=frozenset(key.scopes),
        name=key.name,
        api_key_id=key.id,
        api_key_prefix=key.prefix,
        default_lane=key.default_lane_id,
        key_allowance_id=key.allowance_id,
        allowed_lanes=frozenset(key.allowed_lanes),
        allowed_models=frozenset(key.allowed_models),
    )


def _refused(reason: KeyRefusal, key: ApiKey | None = None, address: str = "") -> InvalidKey:
    """What is raised. The log and the metric alone are told why; of the key no more than its public prefix."""
    REFUSED_KEYS.labels(reason=reason.value).inc()
    if key is not None:
        _log.info("api_key_refused", reason=reason.value, key=key.prefix, address=address)
    return InvalidKey(reason)


def refusal_of(key: ApiKey, now: datetime) -> KeyRefusal | None:
    """Why a key whose secret is right gives no access at ``now``, or None: it does."""
    if key.revoked_at:
        return KeyRefusal.REVOKED
    if key.expires_at and key.expires_at <= now:
        return KeyRefusal.EXPIRED
    if key.tenant.closed_at:
        return KeyRefusal.TENANT_CLOSED
    return None


def principal_of_member(user_id: UUID, tenant_id: UUID) -> Principal:
    """The principal of a user in one of their tenants; one query. Raises ``NotAMember``."""
    for principal in _principals(user_id, tenant_id=tenant_id):
        return principal
    raise NotAMember


def principals_of_user(user_id: UUID) -> list[Principal]:
    """A user's principals, one for each tenant that they may act in, by the tenants' names."""
    return _principals(user_id)


def _principals(user_id: UUID, **only: UUID) -> list[Principal]:
    with every_tenant("a user's memberships say which tenants are theirs"):
        memberships = list(
            Membership.objects.filter(
                user_id=user_id,
                ended_at=None,
                tenant__closed_at=None,
                user__is_active=True,
                # Until a password that somebody else knows is replaced, it opens nothing.
                user__must_change_password=False,
                **only,
            )
            .select_related("tenant", "user")
            .order_by("tenant__name")
        )
    return [
        Principal(
            tenant_id=membership.tenant_id,
            tenant_name=membership.tenant.name,
            scopes=_SCOPES_OF_ROLE[membership.role],
            name=membership.user.get_username(),
            user_id=membership.user_id,
        )
        for membership in memberships
    ]
