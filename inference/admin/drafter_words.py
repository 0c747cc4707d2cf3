"""What the admin calls a pairing's drafter."""

from __future__ import annotations

from inference.models import DrafterKind


def drafter_name(key: str) -> str:
    """The words for a ``speculation_verdicts.drafter_key``."""
    kind, _, draft_model = key.partition(":")
    label = str(DrafterKind(kind).label) if kind in DrafterKind.values else kind
    return f"{label} {draft_model}".rstrip()
