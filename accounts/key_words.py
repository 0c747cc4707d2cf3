"""What a key's state, its lane and its scopes are called, on every page that shows keys."""

from __future__ import annotations

from django.utils import timezone

from accounts.authentication import KeyRefusal, refusal_of
from accounts.formatting import exactly
from accounts.lane_resolution import TENANT_DEFAULT_LANE
from accounts.models import ApiKey, Scope

#: What a key has that names no lane: its requests get this one.
NO_DEFAULT_LANE = f"none ({TENANT_DEFAULT_LANE})"
WORKS, ENDS = "Works", "Works until"
_STATES = {
    KeyRefusal.REVOKED: "Revoked",
    KeyRefusal.EXPIRED: "Expired",
    KeyRefusal.TENANT_CLOSED: "Tenant closed",
}


def key_state(key: ApiKey) -> tuple[str, str]:
    """Which state a key is in, and the words for it: a key that ends by itself says when."""
    refusal = refusal_of(key, timezone.now())
    if refusal is not None:
        return _STATES[refusal], _STATES[refusal]
    if key.expires_at is not None:
        return ENDS, f"{ENDS} {exactly(key.expires_at)}"
    return WORKS, WORKS


def default_lane_of(key: ApiKey) -> str:
    """The lane of its requests that ask for none."""
    return key.default_lane_id or NO_DEFAULT_LANE


def scopes_of(key: ApiKey) -> str:
    """What it may do."""
    return "; ".join(str(Scope(scope).label) for scope in key.scopes)
