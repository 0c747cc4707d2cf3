"""Why a generation ran in its lane, on one page: the decision, whose grant it was by, and the proof of the record."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from django.http import HttpRequest
from django.utils import timezone

from accounts.admin.audit_links import assignments_url, page_of
from accounts.admin.entitlement_words import term_changes
from accounts.admin.trail import TrailEntry, entries_of
from accounts.audit.assignment_proofs import Proof, prove
from accounts.audit.entitlement_records import EntitlementRecord
from accounts.audit.lane_decisions import Decision, explain
from accounts.consumption import TITLES
from accounts.formatting import number
from accounts.limits import LimitName
from accounts.models import AuditArchive, AuditEvent, LaneAssignment


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionPage:
    """All that is shown. Addresses are empty where there is nothing that the reader may see."""

    decision: Decision
    proof: Proof
    terms: Sequence[tuple[str, str]]
    #: What was done to the entitlement up to then: granted, approved, changed.
    grants: Sequence[TrailEntry]
    #: Whether old events lie in archive files.
    archived: bool
    generation_url: str
    tenant_url: str
    key_url: str
    person_url: str
    entitlement_url: str
    same_right_url: str


def page_of_decision(request: HttpRequest, assignment: LaneAssignment) -> DecisionPage:
    """Explain and prove ``assignment``."""
    decision = explain(assignment)
    right = decision.right
    return DecisionPage(
        decision=decision,
        proof=prove(assignment, timezone.now()),
        terms=_terms(right) if right is not None else (),
        grants=entries_of(_grants(right)) if right is not None else (),
        archived=AuditArchive.objects.exists(),
        generation_url=page_of(request, "generation", str(assignment.generation_id)),
        tenant_url=page_of(request, "tenant", str(assignment.tenant_id)),
        key_url=page_of(request, "api_key", str(assignment.api_key_id or "")),
        person_url=page_of(request, "user", str(assignment.user_id or "")),
        entitlement_url=page_of(request, "entitlement", str(assignment.entitlement_id)),
        same_right_url=assignments_url(entitlement_id=str(assignment.entitlement_id)),
    )


def _terms(right: EntitlementRecord) -> list[tuple[str, str]]:
    """What it gave, in words; limits that were not set are left out."""
    limits = right.terms.limits
    set_limits = [
        (TITLES[name], number(limit)) for name in LimitName if (limit := limits.of(name)) is not None
    ]
    said = [(change.name, change.after) for change in term_changes(None, right.terms)]
    return [*(set_limits or [("Limits", "none")]), *said]


def _grants(right: EntitlementRecord) -> list[AuditEvent]:
    events = [right.granted, right.decided, *right.changes]
    return sorted((event for event in events if event is not None), key=lambda event: event.sequence)
