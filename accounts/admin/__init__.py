"""The operator's view of accounts."""

from accounts.admin import (
    assignments,
    audit_events,
    entitlements,
    keys,
    lanes,
    members,
    tenants,
    usage,
    users,
)

__all__ = [
    "assignments",
    "audit_events",
    "entitlements",
    "keys",
    "lanes",
    "members",
    "tenants",
    "usage",
    "users",
]
