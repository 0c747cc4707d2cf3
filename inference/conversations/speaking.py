"""Saying something in a conversation: planned, written with its generation, finished at settlement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from uuid import UUID

from django.db.models import Q
from django.utils import timezone

from accounts.models import Lane
from accounts.principal import Principal
from accounts.tenancy import tenant_scope
from inference.conversations.records import ConversationRefusal, ConversationRefused, Message, PlannedTurn
from inference.conversations.rows import of_member
from inference.conversations.titles import title_of
from inference.models import ChatMessage, ChatRole, Conversation, Generation
from inference.models.generation import LIVE_STATES


def plan_turn(
    principal: Principal, conversation_id: UUID, new: Sequence[Message], *, requested_lane: str | None
) -> PlannedTurn:
    """What the model is to read when ``new`` is said in the conversation.

    Without new messages the last answer is given anew, in place of the one that is there. Raises
    ``ConversationRefused``: there is no such conversation, its last answer is still being written, there is nothing
    to answer, or a message has a role that is not stored.
    """
    for message in new:
        if message.role not in ChatRole.values:
            raise ConversationRefused(
                ConversationRefusal.ROLE_NOT_STORED,
                f"messages: a conversation stores {', '.join(ChatRole.values)}, not {message.role}.",
            )
    with tenant_scope(principal.tenant_id):
        conversation = of_member(principal, conversation_id)
        stored = list(conversation.messages.select_related("generation").order_by("position"))
    last = stored[-1] if stored else None
    if last is not None and last.generation is not None and last.generation.state in LIVE_STATES:
        raise ConversationRefused(
            ConversationRefusal.ANSWER_IN_PROGRESS,
            "The last answer of this conversation is still being written. Wait for it, or stop it.",
        )
    position = last.position + 1 if last else 0
    replaced = None
    if not new:
        if last is None or last.role != ChatRole.ASSISTANT:
            raise ConversationRefused(
                ConversationRefusal.NOTHING_TO_ANSWER,
                "messages: empty, and this conversation has no answer that could be given anew.",
            )
        replaced = position = last.position
        stored.pop()
    earlier = [Message(message.role, message.content) for message in stored]
    return PlannedTurn(
        conversation_id=conversation_id,
        user_id=conversation.user_id,
        prompt=tuple(readable([*earlier, *new])),
        new=tuple(new),
        position=position,
        replaced_position=replaced,
        requested_lane=requested_lane,
    )


def readable(messages: Iterable[Message]) -> list[Message]:
    """The messages as strict chat templates want them: no empty answers, no role twice in a row.

    An answer that failed leaves its question alone; the next question is then read as one with it.
    """
    result: list[Message] = []
    for message in messages:
        if message.role == ChatRole.ASSISTANT and not message.content:
            continue
        if result and result[-1].role == message.role:
            message = Message(message.role, f"{result.pop().content}\n\n{message.content}")
        result.append(message)
    return result


def append_turn(turn: PlannedTurn, generation: Generation) -> None:
    """Write the planned turn and a place for its answer. For ``accept``'s ``within``: runs in its transaction.

    Raises ``ConversationRefused`` where the conversation has changed since the turn was planned.
    """
    conversation = (
        Conversation.objects.select_for_update().filter(id=turn.conversation_id, user_id=turn.user_id).first()
    )
    if conversation is None:
        raise ConversationRefused.not_found()
    if turn.replaced_position is not None:
        replaced, _ = conversation.messages.filter(
            position=turn.replaced_position, role=ChatRole.ASSISTANT
        ).delete()
        if not replaced:
            raise ConversationRefused.changed()
    if conversation.messages.filter(position__gte=turn.position).exists():
        raise ConversationRefused.changed()
    rows = [
        ChatMessage(
            conversation=conversation,
            position=turn.position + offset,
            role=message.role,
            content=message.content,
        )
        for offset, message in enumerate(turn.new)
    ]
    answer = ChatMessage(
        conversation=conversation,
        position=turn.position + len(rows),
        role=ChatRole.ASSISTANT,
        generation=generation,
    )
    ChatMessage.objects.bulk_create([*rows, answer])
    conversation.title = conversation.title or title_of(turn.new)
    conversation.model_id = generation.model_id
    conversation.lane = _lane(turn.requested_lane)
    conversation.save()


def _lane(asked: str | None) -> Lane | None:
    """The lane that was asked for, by its name or else its service tier; None: none in particular."""
    named = Lane.objects.filter(Q(name=asked) | Q(service_tier=asked)) if asked else Lane.objects.none()
    return min(named, key=lambda lane: lane.name != asked, default=None)


def finish(generation: Generation, text: str) -> None:
    """Fill in the answer that ``generation`` gave. For settlement: runs in its transaction.

    A generation outside of any conversation, or whose conversation was deleted, has nothing to fill in.
    """
    with tenant_scope(generation.tenant_id):
        message = ChatMessage.objects.filter(generation=generation).first()
        if message is None:
            return
        ChatMessage.objects.filter(pk=message.pk).update(content=text)
        Conversation.objects.filter(pk=message.conversation_id).update(updated_at=timezone.now())
