"""Listing conversations, and reading one."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import UUID

from django.db.models import Exists, OuterRef

from accounts.models import LaneAssignment
from accounts.principal import Principal
from accounts.tenancy import tenant_scope
from inference.conversations.records import AnswerRecord, Summary, Turn
from inference.conversations.rows import all_of_member, of_member, summary
from inference.models import ChatMessage, Conversation, Generation
from inference.models.generation import LIVE_STATES


def listing(principal: Principal, *, limit: int, after: UUID | None = None) -> tuple[list[Summary], bool]:
    """The member's conversations in this tenant, last used first, and whether more come behind them.

    ``after`` is the last conversation of the page before.
    """
    with tenant_scope(principal.tenant_id):
        spoken_in = Exists(ChatMessage.objects.filter(conversation=OuterRef("pk")))
        rows = all_of_member(principal).filter(spoken_in).order_by("-updated_at")
        if after is not None:
            rows = rows.filter(updated_at__lt=of_member(principal, after).updated_at)
        found = list(rows[: limit + 1])
    return [summary(row) for row in found[:limit]], len(found) > limit


def turns(principal: Principal, conversation_id: UUID) -> tuple[Summary, list[Turn]]:
    """The conversation, and everything said in it. Raises ``ConversationRefused`` when there is no such one."""
    with tenant_scope(principal.tenant_id):
        conversation = of_member(principal, conversation_id)
        rows = list(conversation.messages.select_related("generation__model").order_by("position"))
        ids = [row.generation_id for row in rows if row.generation_id]
        assignments = {row.generation_id: row for row in LaneAssignment.objects.filter(generation_id__in=ids)}
    return summary(conversation), [
        Turn(
            row.role,
            row.content,
            row.created_at,
            _answer(row.generation, assignments.get(row.generation.id)) if row.generation else None,
        )
        for row in rows
    ]


def tenant_of(user_id: UUID, conversation_id: UUID, tenant_ids: Iterable[UUID]) -> UUID | None:
    """Which of ``tenant_ids`` (the user's own) the user's conversation is in; None: in none of them."""
    for tenant_id in tenant_ids:
        with tenant_scope(tenant_id):
            if Conversation.objects.filter(id=conversation_id, user_id=user_id).exists():
                return tenant_id
    return None


def _answer(generation: Generation, assignment: LaneAssignment | None) -> AnswerRecord:
    return AnswerRecord(
        generation_id=generation.id,
        live=generation.state in LIVE_STATES,
        state=generation.state,
        model=generation.model.name,
        lane=generation.lane_id,
        requested_lane=assignment.requested_lane if assignment else "",
        reason=assignment.reason if assignment else "",
        finish_reason=generation.finish_reason,
        cancel_reason=generation.cancel_reason,
        failure_code=generation.failure_code,
        failure_message=generation.failure_message,
        usage=generation.usage,
        created_at=generation.created_at,
        claimed_at=generation.claimed_at,
        first_token_at=generation.first_token_at,
        ended_at=generation.ended_at,
    )
