"""Accounts as rows: constraints live here, workflows do not."""

from accounts.models.api_key import ApiKey, Scope
from accounts.models.assignment import AssignmentReason, LaneAssignment
from accounts.models.audit import AuditEvent, AuditHead
from accounts.models.entitlement import Entitlement
from accounts.models.lane import Lane
from accounts.models.member import Membership, Role
from accounts.models.tenant import Tenant
from accounts.models.usage import LedgerEntry, UsageRollup
from accounts.models.user import User

__all__ = [
    "ApiKey",
    "AssignmentReason",
    "AuditEvent",
    "AuditHead",
    "Entitlement",
    "Lane",
    "LaneAssignment",
    "LedgerEntry",
    "Membership",
    "Role",
    "Scope",
    "Tenant",
    "UsageRollup",
    "User",
]
