"""Scenarios of what is done about the audit itself, and of erasing a person from beside it."""

from __future__ import annotations

from typing import Any, Final

from django.db import transaction
from django.urls import reverse
from django.utils import timezone

from accounts import audit
from accounts.audit import checkpoints
from accounts.models import Entitlement, LaneAssignment
from accounts.principal import Actor
from accounts.tasks import checkpoint_audit, seal_assignments
from accounts.tenancy import every_tenant
from tests.accounts.audit.walk.stage import Act, Scenario, Stage
from tests.factories import ACTOR, EntitlementFactory


def _begun() -> None:
    """A chain with an event and a signed checkpoint."""
    with transaction.atomic():
        audit.record(ACTOR, "thing.change", audit.ObjectRef("thing", "1"), None, None)
    assert checkpoints.make(timezone.now())


def _assignment() -> None:
    right: Entitlement = EntitlementFactory()
    with every_tenant("the scenario is made past the verbs"):
        LaneAssignment.objects.create(
            generation_id=right.id,
            tenant_id=right.tenant_id,
            tenant_name="Rail",
            given_lane="normal",
            reason="requested",
            entitlement_id=right.id,
            policy_version=1,
        )


def _posts(stage: Stage, name: str, /, **values: Any) -> Act:
    return lambda: stage.operator.post(reverse(f"admin:{name}"), values)


def _seal_by_task(stage: Stage) -> Act:
    _assignment()
    return seal_assignments


def _seal(stage: Stage) -> Act:
    _assignment()
    return stage.command("audit", "seal")


def _rotate(stage: Stage) -> Act:
    _begun()
    return stage.command("audit", "rotate-key")


def _erase_account(stage: Stage) -> Act:
    with transaction.atomic():
        jane = Actor.system("manage.py key list", account="m4rk-account")
        audit.record(jane, "thing.change", audit.ObjectRef("thing", "1"), None, None)
    stage.secrets.append("m4rk-account")
    return stage.command("audit", "erase-account", "m4rk-account")


def _archive(stage: Stage) -> Act:
    _begun()
    return stage.command("audit", "archive", "--before", "2099-01-01")


def _export(stage: Stage) -> Act:
    _begun()
    return stage.command("audit", "export", "--output", stage.tmp_path / "export.jsonl")


def _download(stage: Stage) -> Act:
    _begun()
    return _posts(stage, "accounts_audit_export")


def _erase(stage: Stage) -> Act:
    user = stage.user(is_active=False, first_name="M4rkfirst", last_name="M4rklast")
    return stage.admin("accounts_user_erase", user, username=user.username)


PROOFS: Final[dict[str, Scenario]] = {
    "admin: accounts_audit_checkpoint": Scenario(
        ("audit_signing_key.create",), lambda s: _posts(s, "accounts_audit_checkpoint")
    ),
    "admin: accounts_audit_export": Scenario(("audit.export",), _download),
    "admin: accounts_audit_settings": Scenario(
        ("audit_settings.change",),
        lambda s: _posts(s, "accounts_audit_settings", checkpoint_minutes="5", archive_after_days="90"),
    ),
    "admin: accounts_user_erase": Scenario(("user.erase",), _erase),
    "manage.py audit archive": Scenario(("audit.archive",), _archive),
    "manage.py audit checkpoint": Scenario(
        ("audit_signing_key.create",), lambda s: s.command("audit", "checkpoint")
    ),
    "manage.py audit export": Scenario(("audit.export",), _export),
    "manage.py audit rotate-key": Scenario(("audit_signing_key.rotate",), _rotate),
    "manage.py audit seal": Scenario(("lane_assignments.seal",), _seal),
    "manage.py audit settings": Scenario(
        ("audit_settings.change",), lambda s: s.command("audit", "settings", "--checkpoint-minutes", "5")
    ),
    "manage.py audit erase-account": Scenario(("command_account.erase",), _erase_account),
    "manage.py user erase": Scenario(
        ("user.erase",), lambda s: s.command("user", "erase", s.user(is_active=False).username, "--yes")
    ),
    "task: accounts.tasks.checkpoint_audit": Scenario(
        ("audit_signing_key.create",), lambda s: checkpoint_audit
    ),
    "task: accounts.tasks.seal_assignments": Scenario(("lane_assignments.seal",), _seal_by_task),
}
