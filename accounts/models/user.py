from __future__ import annotations

import uuid

from django.contrib.auth.models import AbstractUser
from django.db import models


class User(AbstractUser):
    """A person. ``is_staff`` may open the admin; ``is_superuser`` is a platform operator.

    Users are closed (``is_active = False``), never deleted: audit events name them.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    must_change_password = models.BooleanField(
        default=False,
        help_text="The password was set by somebody else: it is changed at the next log-in.",
    )

    class Meta(AbstractUser.Meta):
        ordering = ["username"]
