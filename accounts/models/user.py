from __future__ import annotations

import uuid

from django.contrib.auth.models import AbstractUser
from django.db import models


class User(AbstractUser):
    """A person. ``is_staff`` may open the admin; ``is_superuser`` is a platform operator.

    ``is_auditor`` sees all of the audit there, and changes nothing.

    Users are closed (``is_active = False``), never deleted: audit events name them.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    must_change_password = models.BooleanField(
        default=False,
        help_text="The password was set by somebody else: it is changed at the next log-in.",
    )
    is_auditor = models.BooleanField(
        "auditor", default=False, help_text="Sees all of the audit in the admin, and changes nothing."
    )
    erased_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="Their personal data was erased then."
    )

    class Meta(AbstractUser.Meta):
        ordering = ["username"]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(erased_at=None) | models.Q(is_active=False), name="user_erased_is_closed"
            ),
        ]
