"""Whose access has ended since they were let in: for what goes on for a while, and was authorized at its start."""

from __future__ import annotations

from collections.abc import Collection

from accounts.models import ApiKey, Membership
from accounts.principal import Principal
from accounts.tenancy import every_tenant


def ended_among(principals: Collection[Principal]) -> set[Principal]:
    """Those whose key was revoked, whose membership, user or tenant was closed, or whose password was replaced.

    One query for all keys and one for all members, and none where there is neither. A key that merely expires keeps
    what it began; so does a user who chose another password.
    """
    key_ids = {principal.api_key_id for principal in principals if principal.api_key_id}
    user_ids = {principal.user_id for principal in principals if principal.user_id}
    keys: set[object] = set()
    members: set[object] = set()
    with every_tenant("access may end in every tenant"):
        if key_ids:
            held = ApiKey.objects.filter(id__in=key_ids, revoked_at=None, tenant__closed_at=None)
            keys.update(held.values_list("id", flat=True))
        if user_ids:
            standing = Membership.objects.filter(
                user_id__in=user_ids,
                ended_at=None,
                tenant__closed_at=None,
                user__is_active=True,
                user__must_change_password=False,
            )
            members.update(standing.values_list("tenant_id", "user_id"))
    return {
        principal
        for principal in principals
        if principal.api_key_id not in keys and (principal.tenant_id, principal.user_id) not in members
    }
