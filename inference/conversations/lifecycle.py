"""Starting, naming and deleting conversations."""

from __future__ import annotations

from datetime import timedelta
from typing import Final
from uuid import UUID

from django.db import transaction
from django.utils import timezone

from accounts import audit
from accounts.principal import Actor, Principal
from accounts.tenancy import tenant_scope
from inference.conversations.records import Summary
from inference.conversations.rows import all_of_member, member_id, of_member, summary
from inference.models import Conversation, LanguageModel
from inference.models.generation import LIVE_STATES

#: Longest title, in characters.
TITLE_LIMIT: Final = 120
#: How long a conversation may stay without a turn: its first message was never accepted.
_EMPTY_LIFETIME: Final = timedelta(hours=1)


def start(principal: Principal, *, model: LanguageModel, lane: str | None) -> Summary:
    """Start an empty conversation. It is listed from its first turn on."""
    with tenant_scope(principal.tenant_id), transaction.atomic():
        forgotten = timezone.now() - _EMPTY_LIFETIME
        all_of_member(principal).filter(messages=None, created_at__lt=forgotten).delete()
        conversation = Conversation.objects.create(
            tenant_id=principal.tenant_id, user_id=member_id(principal), title="", model=model, lane_id=lane
        )
    return summary(conversation)


def rename(principal: Principal, conversation_id: UUID, title: str) -> Summary:
    """Give the conversation another title; a blank one leaves it as it is. Its place in the list stays."""
    title = " ".join(title.split())[:TITLE_LIMIT]
    with tenant_scope(principal.tenant_id), transaction.atomic():
        conversation = of_member(principal, conversation_id)
        conversation.title = title or conversation.title
        all_of_member(principal).filter(pk=conversation.pk).update(title=conversation.title)
    return summary(conversation)


def delete(principal: Principal, conversation_id: UUID, *, actor: Actor) -> list[UUID]:
    """Delete the conversation and its messages. Returns the generations still at work on it, for the caller to cancel.

    The audit keeps that a conversation was deleted and how long it was, never its words.
    """
    with tenant_scope(principal.tenant_id), transaction.atomic():
        conversation = of_member(principal, conversation_id)
        live = list(
            conversation.messages.filter(generation__state__in=LIVE_STATES).values_list(
                "generation_id", flat=True
            )
        )
        before = {
            "messages": conversation.messages.count(),
            "created_at": conversation.created_at.isoformat(),
        }
        conversation.delete()
        reference = audit.ObjectRef("conversation", str(conversation_id))
        audit.record(actor, "conversation.delete", reference, before, None, tenant_id=principal.tenant_id)
    return [generation_id for generation_id in live if generation_id is not None]
