"""From a ``generate`` frame to an accepted generation. Runs in a thread, with a database connection of its own."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Final
from uuid import UUID

from accounts.models import Scope
from inference import conversations, intake
from inference.api import language_models
from inference.api.chat_messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    UserMessage,
    as_template_message,
    has_calls,
)
from inference.api.frames import Generate
from inference.api.prompts import chat_prompt, check_logit_bias
from inference.api.socket_credentials import Credentials, require
from inference.conversations import ConversationRefusal, ConversationRefused
from inference.intake import Accepted, Submission

ROUTE: Final = "ws.chat"


def accept(frame: Generate, credentials: Credentials) -> Accepted:
    """Accept the generation that ``frame`` asks for, and store its turn if it belongs to a conversation.

    A stored conversation's generation runs on without a reader. Raises what refuses it: ``ApiError``, ``FrameError``,
    ``InvalidKey``, ``NotAMember``, ``ConversationRefused`` or ``intake.Refused``.
    """
    conversation = conversation_id(frame.conversation) if frame.conversation is not None else None
    principal = credentials.principal(tenant=frame.tenant, conversation=conversation)
    require(principal, Scope.INFERENCE)
    requested_lane = frame.lane or frame.service_tier
    model = language_models.find(frame.model)
    sampling = frame.sampling()
    check_logit_bias(model, sampling.logit_bias)
    messages, within = frame.messages, None
    if conversation is not None:
        turn = conversations.plan_turn(
            principal, conversation, _storable(frame.messages), requested_lane=requested_lane
        )
        messages, within = [_message(message) for message in turn.prompt], partial(conversations.append_turn, turn)
    submission = Submission(
        model=model,
        prompt=chat_prompt(model, messages),
        sampling=sampling,
        route=ROUTE,
        max_tokens=frame.answer_tokens,
        stop=tuple(frame.stop),
        requested_lane=requested_lane,
        unattended=conversation is not None,
        keep_output=conversation is not None,
    )
    return intake.accept(principal, submission, within=within)


def conversation_id(text: str) -> UUID:
    """The id that a client names a conversation with. Raises ``ConversationRefused`` for what cannot be one."""
    try:
        return UUID(text)
    except ValueError:
        raise ConversationRefused.not_found() from None


def _storable(messages: Iterable[Message]) -> list[conversations.Message]:
    messages = list(messages)
    if has_calls(messages):
        raise ConversationRefused(
            ConversationRefusal.ROLE_NOT_STORED, "messages: a conversation stores texts, and no tool calls."
        )
    return [conversations.Message(message.role, as_template_message(message)["content"]) for message in messages]


def _message(message: conversations.Message) -> Message:
    match message.role:
        case "system":
            return SystemMessage(role="system", content=message.content)
        case "assistant":
            return AssistantMessage(role="assistant", content=message.content)
        case _:
            return UserMessage(role="user", content=message.content)
