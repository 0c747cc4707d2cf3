"""What the admin calls a pairing's drafter, and how much it drafts."""

from __future__ import annotations

from accounts.formatting import counted
from inference.messages import SlotSnapshot
from inference.models import DrafterKind


def drafter_name(key: str) -> str:
    """The words for a ``speculation_verdicts.drafter_key``."""
    kind, _, draft_model = key.partition(":")
    label = str(DrafterKind(kind).label) if kind in DrafterKind.values else kind
    return f"{label} {draft_model}".rstrip()


def draft_length(slot: SlotSnapshot) -> str:
    """Of the last round; empty before there was one."""
    return counted(slot.draft_length, "token") if slot.draft_length else ""
