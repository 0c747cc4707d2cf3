"""What an operator sets about the audit: how often its head is signed, and when old records move to archive files."""

from __future__ import annotations

from typing import Final

from django.db import transaction

from accounts import audit
from accounts.models import AuditSettings
from accounts.principal import Actor
from accounts.refusals import ChangeRefusal, ChangeRefused

#: The longest that can be set: about a century, and a week.
MOST_DAYS: Final = 36_500
MOST_MINUTES: Final = 7 * 24 * 60

_AUDITED: Final = ("archive_after_days", "checkpoint_minutes")


def current() -> AuditSettings:
    """The settings as they are now."""
    return AuditSettings.objects.get(id=1)


def change(*, archive_after_days: int | None, checkpoint_minutes: int, actor: Actor) -> AuditSettings:
    """Set both; they hold from the next minute on. Raises ``ChangeRefused``.

    ``archive_after_days``: events and assignments that are older move to archive files each night; None: they stay in
    the database. ``checkpoint_minutes``: a checkpoint is made that often, where something was recorded since.
    """
    if archive_after_days is not None and not 1 <= archive_after_days <= MOST_DAYS:
        raise ChangeRefused(
            ChangeRefusal.INVALID,
            f"Records can be archived after 1 to {MOST_DAYS:,} days, or never; not after {archive_after_days:,}.",
            field="archive_after_days",
        )
    if not 1 <= checkpoint_minutes <= MOST_MINUTES:
        raise ChangeRefused(
            ChangeRefusal.INVALID,
            f"A checkpoint can be made every 1 to {MOST_MINUTES:,} minutes (a week), not every {checkpoint_minutes:,}.",
            field="checkpoint_minutes",
        )
    with transaction.atomic():
        settings = AuditSettings.objects.select_for_update(no_key=True).get(id=1)
        before = audit.fields_of(settings, *_AUDITED)
        settings.archive_after_days = archive_after_days
        settings.checkpoint_minutes = checkpoint_minutes
        after = audit.fields_of(settings, *_AUDITED)
        if after != before:
            settings.save(update_fields=list(_AUDITED))
            audit.record(actor, "audit_settings.change", settings, before, after)
    return settings
