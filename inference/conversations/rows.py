"""A member's conversation rows. Every function here needs the tenant's scope to be active."""

from __future__ import annotations

from uuid import UUID

from django.db.models import QuerySet

from accounts.principal import Principal
from inference.conversations.records import ConversationRefused, Summary
from inference.models import Conversation


def all_of_member(principal: Principal) -> QuerySet[Conversation]:
    """The member's conversations, and nobody else's of the same tenant."""
    rows: QuerySet[Conversation] = Conversation.objects.filter(user_id=member_id(principal))
    return rows.select_related("model")


def of_member(principal: Principal, conversation_id: UUID) -> Conversation:
    """One of them. Raises ``ConversationRefused``, the same for what does not exist and for what is another's."""
    conversation = all_of_member(principal).filter(id=conversation_id).first()
    if conversation is None:
        raise ConversationRefused.not_found()
    return conversation


def member_id(principal: Principal) -> UUID:
    """The user's id. Raises ``ValueError`` for an API key: conversations belong to people."""
    if principal.user_id is None:
        raise ValueError("conversations belong to members: an API key has none")
    return principal.user_id


def summary(row: Conversation) -> Summary:
    return Summary(
        id=row.id,
        title=row.title,
        model=row.model.name,
        lane=row.lane_id,
        created_at=row.created_at,
        updated_at=row.updated_at,
    )
