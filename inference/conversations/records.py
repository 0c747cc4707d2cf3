"""What conversations look like from outside: plain values, and why a verb may be refused."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from inference.messages import Usage


class ConversationRefusal(StrEnum):
    """Why a verb was refused: the same code in the socket's frames and the page's answers."""

    NOT_FOUND = "conversation_not_found"
    ANSWER_IN_PROGRESS = "answer_in_progress"
    CHANGED = "conversation_changed"
    NOTHING_TO_ANSWER = "nothing_to_answer"
    ROLE_NOT_STORED = "role_not_stored"


class ConversationRefused(Exception):
    """The verb was refused; nothing was written."""

    def __init__(self, code: ConversationRefusal, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message

    @classmethod
    def not_found(cls) -> ConversationRefused:
        return cls(ConversationRefusal.NOT_FOUND, "There is no such conversation.")

    @classmethod
    def changed(cls) -> ConversationRefused:
        return cls(
            ConversationRefusal.CHANGED,
            "The conversation has changed meanwhile (in another window?). Load it again.",
        )


@dataclass(frozen=True, slots=True)
class Message:
    """One message as a chat template takes it."""

    role: str
    content: str


@dataclass(frozen=True, slots=True)
class Summary:
    """A conversation, for a list. ``title`` is empty until the first turn, ``lane`` when none was asked for."""

    id: UUID
    title: str
    model: str
    lane: str | None
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerRecord:
    """What is known of the generation behind an answer. Times are None until they have happened."""

    generation_id: UUID
    live: bool
    state: str
    model: str
    lane: str
    requested_lane: str
    reason: str
    finish_reason: str
    cancel_reason: str
    failure_code: str
    failure_message: str
    usage: Usage
    created_at: datetime
    claimed_at: datetime | None
    first_token_at: datetime | None
    ended_at: datetime | None


@dataclass(frozen=True, slots=True)
class Turn:
    """A stored message; ``answer`` is set on the assistant's."""

    role: str
    content: str
    created_at: datetime
    answer: AnswerRecord | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTurn:
    """A turn that is written if its generation is accepted.

    ``prompt`` is the whole conversation as the model is to read it, new messages included; ``position`` is where the
    new messages go; ``replaced_position`` is the answer that is given anew, if that is what was asked for;
    ``requested_lane`` is remembered for the next turn.
    """

    conversation_id: UUID
    user_id: UUID
    prompt: tuple[Message, ...]
    new: tuple[Message, ...]
    position: int
    replaced_position: int | None
    requested_lane: str | None
