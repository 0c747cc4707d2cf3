"""Accounts as rows: constraints live here, workflows do not."""

from accounts.models.allowance import Allowance, BudgetWindow, Reservation
from accounts.models.api_key import ApiKey, Scope
from accounts.models.assignment import AssignmentReason, LaneAssignment
from accounts.models.audit import (
    AuditArchive,
    AuditCheckpoint,
    AuditEvent,
    AuditHead,
    AuditPersonalValue,
    AuditSettings,
    AuditSigningKey,
    AuditVerification,
    SealedAssignment,
)
from accounts.models.budget_event import BudgetEvent
from accounts.models.entitlement import Approval, Entitlement, OnExhausted
from accounts.models.lane import Lane
from accounts.models.member import Membership, Role
from accounts.models.price import PRICED_TOKENS, Price
from accounts.models.tenant import Tenant
from accounts.models.usage import LedgerEntry, UsageRollup
from accounts.models.user import User
from accounts.models.webhook import WebhookDelivery, WebhookEndpoint

__all__ = [
    "PRICED_TOKENS",
    "Allowance",
    "ApiKey",
    "Approval",
    "AssignmentReason",
    "AuditArchive",
    "AuditCheckpoint",
    "AuditEvent",
    "AuditHead",
    "AuditPersonalValue",
    "AuditSettings",
    "AuditSigningKey",
    "AuditVerification",
    "BudgetEvent",
    "BudgetWindow",
    "Entitlement",
    "Lane",
    "LaneAssignment",
    "LedgerEntry",
    "Membership",
    "OnExhausted",
    "Price",
    "Reservation",
    "Role",
    "Scope",
    "SealedAssignment",
    "Tenant",
    "UsageRollup",
    "User",
    "WebhookDelivery",
    "WebhookEndpoint",
]
