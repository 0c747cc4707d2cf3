"""What the frames of the chat socket do with the database: in a thread, with a connection of their own."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from functools import partial
from typing import Any, Final, ParamSpec, TypeVar
from uuid import UUID

from channels.db import database_sync_to_async

from accounts.models import Scope
from accounts.principal import Principal
from accounts.tenancy import tenant_scope
from inference import cancellation, conversations, intake
from inference.api import language_models
from inference.api.chat_messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    UserMessage,
    as_template_message,
    has_calls,
)
from inference.api.frames import Cancel, Generate, Resume
from inference.api.ids import EventId
from inference.api.prompts import chat_prompt, check_logit_bias
from inference.api.reading import complete_entries
from inference.api.socket_credentials import Credentials, require
from inference.conversations import ConversationRefusal, ConversationRefused
from inference.intake import Accepted, Submission
from inference.messages import CancelReason, LogEntry
from inference.models import Generation

ROUTE: Final = "ws.chat"

P = ParamSpec("P")
T = TypeVar("T")


def in_thread(function: Callable[P, T]) -> Callable[P, Coroutine[Any, Any, T]]:
    """``function`` in a thread of the pool, which gives its database connection back at the end.

    Not in Django's one thread for all of a process's sockets: there they would wait for each other.
    """
    wrapped: Callable[P, Coroutine[Any, Any, T]] = database_sync_to_async(function, thread_sensitive=False)
    return wrapped


def accept(frame: Generate, credentials: Credentials) -> Accepted:
    """Accept the generation that ``frame`` asks for, and store its turn if it belongs to a conversation.

    A stored conversation's generation runs on without a reader. Raises what refuses it: ``ApiError``, ``FrameError``,
    ``InvalidKey``, ``NotAMember``, ``ConversationRefused`` or ``intake.Refused``.
    """
    conversation = conversation_id(frame.conversation) if frame.conversation is not None else None
    principal = credentials.principal(tenant=frame.tenant, conversation=conversation)
    require(principal, Scope.INFERENCE)
    requested_lane = frame.lane or frame.service_tier
    model = language_models.find(frame.model, principal)
    sampling = frame.sampling()
    check_logit_bias(model, sampling.logit_bias)
    messages, within = frame.messages, None
    if conversation is not None:
        turn = conversations.plan_turn(
            principal, conversation, _storable(frame.messages), requested_lane=requested_lane
        )
        messages, within = (
            [_message(message) for message in turn.prompt],
            partial(conversations.append_turn, turn),
        )
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


def find_events(
    frame: Resume, credentials: Credentials
) -> tuple[Principal, Generation, list[LogEntry] | None]:
    """Who may follow which generation, and its events where they are all there already; None: more are to come.

    Raises what refuses it, ``LogExpired`` and ``StreamDiverged`` among that.
    """
    principal, generation = credentials.generation(frame.generation)
    require(principal, Scope.INFERENCE, Scope.READ)
    with tenant_scope(principal.tenant_id):
        after = EventId(generation.id, frame.after, frame.epoch)
        return principal, generation, complete_entries(generation, after)


def cancel(frame: Cancel, credentials: Credentials) -> None:
    """End the generation for its own client. Raises what refuses it."""
    principal, generation = credentials.generation(frame.generation)
    require(principal, Scope.INFERENCE)
    cancellation.cancel(generation.id, CancelReason.CLIENT_REQUESTED)


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
    return [
        conversations.Message(message.role, as_template_message(message)["content"]) for message in messages
    ]


def _message(message: conversations.Message) -> Message:
    match message.role:
        case "system":
            return SystemMessage(role="system", content=message.content)
        case "assistant":
            return AssistantMessage(role="assistant", content=message.content)
        case _:
            return UserMessage(role="user", content=message.content)
