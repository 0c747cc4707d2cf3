"""The operator's view of accounts."""

from accounts.admin import (
    assignments,
    audit_events,
    budget_events,
    entitlements,
    keys,
    lanes,
    members,
    prices,
    tenants,
    usage,
    users,
    webhooks,
)

__all__ = [
    "assignments",
    "audit_events",
    "budget_events",
    "entitlements",
    "keys",
    "lanes",
    "members",
    "prices",
    "tenants",
    "usage",
    "users",
    "webhooks",
]
