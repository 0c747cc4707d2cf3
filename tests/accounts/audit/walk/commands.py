"""Scenarios of ``manage.py``'s verbs and of the periodic tasks."""

from __future__ import annotations

import shutil
from datetime import timedelta
from typing import Any, Final

import pytest
from django.utils import timezone

from accounts import log_in_counters
from accounts.models import Allowance, Approval
from accounts.tasks import record_failed_log_ins
from accounts.tenancy import every_tenant
from inference.engine.drafting import pool_files
from inference.models import GenerationRequest
from inference.tasks import delete_old_requests
from signalbox.configuration import configuration
from tests.accounts.audit.walk.stage import Act, Scenario, Stage
from tests.factories import (
    AllowanceFactory,
    ApiKeyFactory,
    EntitlementFactory,
    LanguageModelFactory,
    SpeculationVerdictFactory,
    TenantFactory,
)


def _requested(stage: Stage, lane: str = "low") -> Any:
    return EntitlementFactory(lane_id=lane, granted_by=stage.another_operator(), approval=Approval.REQUESTED)


def _prefix_of(key: Any) -> str:
    return str(key.prefix)


def _add_price(stage: Stage) -> Act:
    LanguageModelFactory(name="org/model")
    amounts = ("--currency", "EUR", "--prompt", "0.15", "--completion", "0.6")
    return stage.command("price", "add", "org/model", *amounts)


def _repair(stage: Stage) -> Act:
    allowance = AllowanceFactory()
    with every_tenant("the scenario falsifies a counter"):
        Allowance.objects.filter(id=allowance.id).update(live_generations=3)  # type: ignore[attr-defined]
    return stage.command("ledger", "verify", "--repair")


def _add_model(stage: Stage) -> Act:
    """One that was prepared before: what is under test is its offer."""
    shutil.copytree(stage.tiny_model_dir, configuration().models_dir / "walked")
    return stage.command("model", "add", "/nothing/here.whl", "--name", "walked", "--if-missing")


def _remove_model(stage: Stage) -> Act:
    shutil.copytree(stage.tiny_model_dir, configuration().models_dir / "walked")
    LanguageModelFactory(name="walked")
    return stage.command("model", "remove", "walked")


def _schedule(stage: Stage) -> Act:
    LanguageModelFactory(name="walked")
    return stage.command("model", "schedule", "walked", "--slots", "3")


def _profile(stage: Stage) -> Act:
    verdict: Any = SpeculationVerdictFactory()
    return stage.command("model", "profile", verdict.language_model.name)


def _build_pool(stage: Stage) -> Act:
    LanguageModelFactory(name="walked", directory=str(stage.tiny_model_dir))
    prompts = stage.tmp_path / "prompts.txt"
    prompts.write_text("m4rk-prompt")
    stage.secrets.append("m4rk-prompt")
    where = ("--prompts", prompts, "--output", stage.tmp_path / "pool")
    build = stage.command("pool", "build", "walked", *where, "--answer-tokens", 1)

    def built() -> None:
        with pytest.MonkeyPatch.context() as patch:
            # MLX is there before the command: it cannot be given another BLAS any more.
            stock = configuration().model_copy(update={"blas": "stock"})
            patch.setattr("inference.management.serving.configuration", lambda: stock)
            patch.setattr("inference.engine.blas._loaded", None)
            build()

    return built


def _forget_pool(stage: Stage) -> Act:
    tenant: Any = TenantFactory(slug="rail")
    pools = configuration().pools_dir / "tiny" / pool_files._TENANTS
    pools.mkdir(parents=True, exist_ok=True)
    (pools / f"{tenant.id.hex}.pool").write_bytes(b"")
    return stage.command("pool", "forget", "rail")


def _count_failures(stage: Stage) -> Act:
    for _ in range(log_in_counters.EVENTS_A_MINUTE + 2):
        log_in_counters.gets_event()
    return record_failed_log_ins


def _retain(stage: Stage) -> Act:
    long_ago = timezone.now() - timedelta(days=configuration().request_retention_days + 1)
    generation = stage.generation(state="completed", ended_at=long_ago)
    stage.secrets.append("m4rk-prompt")
    with every_tenant("the scenario is made past the verbs"):
        GenerationRequest.objects.create(generation=generation, task=b"m4rk-prompt")
    return delete_old_requests


COMMANDS: Final[dict[str, Scenario]] = {
    "manage.py bootstrap": Scenario(
        (
            "user.create",
            "tenant.create",
            "entitlement.grant",
            "entitlement.grant",
            "entitlement.grant",
            "membership.add",
            "api_key.create",
        ),
        lambda s: _without_operators(s, "bootstrap"),
    ),
    "manage.py user create": Scenario(
        ("user.create", "membership.add"),
        lambda s: s.command(
            *("user", "create", "m4rk-new", "--email", "m4rk-new@example.com"),
            *("--tenant", TenantFactory(slug="rail").slug, "--role", "viewer"),
        ),
    ),
    "manage.py user password": Scenario(
        ("user.reset_password",), lambda s: s.command("user", "password", s.user().username)
    ),
    "manage.py tenant create": Scenario(
        ("tenant.create", "entitlement.grant"),
        lambda s: s.command("tenant", "create", "rail", "--lane", "low"),
    ),
    "manage.py tenant close": Scenario(
        ("tenant.close",), lambda s: s.command("tenant", "close", TenantFactory(slug="rail").slug)
    ),
    "manage.py tenant reopen": Scenario(
        ("tenant.reopen",),
        lambda s: s.command("tenant", "reopen", TenantFactory(slug="rail", closed_at=timezone.now()).slug),
    ),
    "manage.py key create": Scenario(
        ("api_key.create",),
        lambda s: s.command("key", "create", "--tenant", TenantFactory(slug="rail").slug, "--name", "app"),
    ),
    "manage.py key change": Scenario(
        ("api_key.change",),
        lambda s: s.command("key", "change", _prefix_of(ApiKeyFactory()), "--name", "changed"),
    ),
    "manage.py key rotate": Scenario(
        ("api_key.rotate", "api_key.create"),
        lambda s: s.command("key", "rotate", _prefix_of(ApiKeyFactory())),
    ),
    "manage.py key revoke": Scenario(
        ("api_key.revoke",), lambda s: s.command("key", "revoke", _prefix_of(ApiKeyFactory()))
    ),
    "manage.py key rotate-pepper": Scenario(("pepper.rotate",), lambda s: s.command("key", "rotate-pepper")),
    "manage.py entitlement grant": Scenario(
        ("entitlement.grant",),
        lambda s: s.command(
            "entitlement", "grant", "--tenant", TenantFactory(slug="rail").slug, "--lane", "low"
        ),
    ),
    "manage.py entitlement change": Scenario(
        ("entitlement.change",),
        lambda s: s.command("entitlement", "change", EntitlementFactory().id, "--concurrency", "3"),
    ),
    "manage.py entitlement end": Scenario(
        ("entitlement.end",), lambda s: s.command("entitlement", "end", EntitlementFactory().id)
    ),
    "manage.py entitlement approve": Scenario(
        ("entitlement.approve",),
        lambda s: s.command("entitlement", "approve", _requested(s).id, "--by", s.person.username),
    ),
    "manage.py entitlement refuse": Scenario(
        ("entitlement.refuse",),
        lambda s: s.command(
            *("entitlement", "refuse", _requested(s).id, "--by", s.person.username, "--reason", "no")
        ),
    ),
    "manage.py price add": Scenario(("price.add",), _add_price),
    "manage.py ledger verify": Scenario(("ledger.repair",), _repair),
    "manage.py ledger rebuild": Scenario(("ledger.rebuild",), lambda s: s.command("ledger", "rebuild")),
    "manage.py model add": Scenario(("language_model.register",), _add_model),
    "manage.py model remove": Scenario(
        ("language_model.retire", "language_model.delete_files"), _remove_model
    ),
    "manage.py model schedule": Scenario(("scheduler_settings.change",), _schedule),
    "manage.py model profile": Scenario(("language_model.profile_again",), _profile),
    "manage.py pool build": Scenario(("suffix_pool.build",), _build_pool),
    "manage.py pool forget": Scenario(("suffix_pool.forget",), _forget_pool),
}

TASKS: Final[dict[str, Scenario]] = {
    "task: accounts.tasks.record_failed_log_ins": Scenario(("user.log_in_failed",), _count_failures),
    "task: inference.tasks.delete_old_requests": Scenario(("retention.apply",), _retain),
}


def _without_operators(stage: Stage, *arguments: str) -> Act:
    type(stage.person).objects.all().delete()
    return stage.command(*arguments)
