"""What other parts of the site are told of, once it is committed."""

from __future__ import annotations

from django.dispatch import Signal

#: Every session of a user has ended: their account was closed, or their password replaced by somebody else.
#: Sent with ``sender=User`` and ``user_id``.
sessions_ended = Signal()
