"""What inference keeps of a person, and how it is erased: their conversations, and what they and the models said.

Generations stay, with their usage and lanes: they say that something ran, not what.
"""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from accounts.refusals import ChangeRefusal, ChangeRefused
from accounts.tenancy import every_tenant
from inference.models import Conversation, Generation, GenerationOutput, GenerationRequest
from inference.models.generation import LIVE_STATES


def erase_user(user_id: UUID) -> Mapping[str, int]:
    """Delete a closed user's conversations, and the prompts and outputs that are still kept of what they asked.

    In the caller's transaction; how much of what. Raises ``ChangeRefused`` while generations of theirs are live: each
    would keep its words at its end.
    """
    with every_tenant("a person is erased from every tenant that they were in"):
        live = Generation.objects.filter(user_id=user_id, state__in=LIVE_STATES).count()
        if live:
            raise ChangeRefused(
                ChangeRefusal.STILL_RUNNING,
                f"{live} of their generations have not ended yet: they do, soon after the account was closed. Try "
                "again then.",
            )
        theirs = {
            "conversations": Conversation.objects.filter(user_id=user_id),
            "prompts": GenerationRequest.objects.filter(generation__user_id=user_id),
            "outputs": GenerationOutput.objects.filter(generation__user_id=user_id),
        }
        erased = {name: rows.count() for name, rows in theirs.items()}
        for rows in theirs.values():
            rows.delete()
    return erased
