"""A person's data out of the audit: the chain stays as it was, and provable.

What is about people stands beside the events, each value with a random salt; the chain has commitments. Once value and
salt are gone nobody can learn from a commitment what it was of, and everything else holds as before.
"""

from __future__ import annotations

from uuid import UUID

from accounts.models import AuditPersonalValue


def erase_values(person_id: UUID) -> int:
    """Delete what stands beside the events about that user, in the caller's transaction; how many values."""
    deleted, _ = AuditPersonalValue.objects.filter(person_id=person_id).delete()
    return deleted
