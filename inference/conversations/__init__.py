"""Stored chats: the turns of one user with one model, and the verbs that change them.

A turn is written inside the transaction that accepts its generation (``intake.accept``, ``within=``), so
that neither a question without a generation nor a generation without its question can exist. The answer's
text comes at settlement, in the settling transaction; until then the token log has it.

Everybody else sees the frozen values of ``records``, never rows.
"""

from inference.conversations.lifecycle import delete, rename, start
from inference.conversations.reading import listing, tenant_of, turns
from inference.conversations.records import (
    AnswerRecord,
    ConversationRefusal,
    ConversationRefused,
    Message,
    PlannedTurn,
    Summary,
    Turn,
)
from inference.conversations.speaking import append_turn, finish, plan_turn

__all__ = [
    "AnswerRecord",
    "ConversationRefusal",
    "ConversationRefused",
    "Message",
    "PlannedTurn",
    "Summary",
    "Turn",
    "append_turn",
    "delete",
    "finish",
    "listing",
    "plan_turn",
    "rename",
    "start",
    "tenant_of",
    "turns",
]
