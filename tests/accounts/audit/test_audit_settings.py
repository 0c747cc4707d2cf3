from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from accounts.audit import settings
from accounts.audit.settings import MOST_DAYS, MOST_MINUTES
from accounts.models import AuditEvent
from accounts.refusals import ChangeRefused
from tests.factories import ACTOR

pytestmark = pytest.mark.django_db


def run(*arguments: str) -> str:
    output = StringIO()
    call_command("audit", "settings", *arguments, stdout=output, stderr=StringIO())
    return output.getvalue().strip()


def test_nothing_is_archived_and_a_checkpoint_is_made_each_hour_until_somebody_says_otherwise() -> None:
    now = settings.current()
    assert (now.archive_after_days, now.checkpoint_minutes) == (None, 60)


def test_a_change_is_recorded_with_what_was_before() -> None:
    settings.change(archive_after_days=365, checkpoint_minutes=15, actor=ACTOR)
    now = settings.current()
    assert (now.archive_after_days, now.checkpoint_minutes) == (365, 15)
    event = AuditEvent.objects.get()
    assert (event.action, event.object_kind) == ("audit_settings.change", "audit_settings")
    assert event.before == {"archive_after_days": None, "checkpoint_minutes": 60}
    assert event.after == {"archive_after_days": 365, "checkpoint_minutes": 15}
    settings.change(archive_after_days=365, checkpoint_minutes=15, actor=ACTOR)
    assert AuditEvent.objects.count() == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("archive_after_days", 0),
        ("archive_after_days", -1),
        ("archive_after_days", MOST_DAYS + 1),
        ("checkpoint_minutes", 0),
        ("checkpoint_minutes", MOST_MINUTES + 1),
    ],
)
def test_what_cannot_be_is_refused_and_its_field_named(field: str, value: int) -> None:
    wanted: dict[str, Any] = {"archive_after_days": 30, "checkpoint_minutes": 60, field: value}
    with pytest.raises(ChangeRefused) as refused:
        settings.change(**wanted, actor=ACTOR)
    assert refused.value.field == field
    assert settings.current().archive_after_days is None
    assert not AuditEvent.objects.exists()


def test_the_command_shows_them_and_changes_what_is_named() -> None:
    assert run() == "Archived: never. A checkpoint every 60 minutes."
    assert run("--archive-after-days", "90") == "Archived: after 90 days. A checkpoint every 60 minutes."
    assert run("--checkpoint-minutes", "5") == "Archived: after 90 days. A checkpoint every 5 minutes."
    assert run("--archive-after-days", "1") == "Archived: after 1 day. A checkpoint every 5 minutes."
    assert run("--archive-after-days", "never") == "Archived: never. A checkpoint every 5 minutes."
    assert AuditEvent.objects.latest("sequence").actor_name == "manage.py audit settings"
    with pytest.raises(CommandError, match="not every 0"):
        run("--checkpoint-minutes", "0")
    with pytest.raises(CommandError, match="'soon' is neither"):
        run("--archive-after-days", "soon")
