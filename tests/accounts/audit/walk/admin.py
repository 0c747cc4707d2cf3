"""Scenarios of the admin's forms and actions."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Final

from django.urls import reverse
from django.utils import timezone

from accounts.models import Approval, Lane, Price, Role
from inference.models import PublishedPrefix
from tests.accounts.audit.walk.stage import Act, Scenario, Stage
from tests.factories import (
    ApiKeyFactory,
    EntitlementFactory,
    LanguageModelFactory,
    MembershipFactory,
    SpeculationVerdictFactory,
    TenantFactory,
    WebhookDeliveryFactory,
    WebhookEndpointFactory,
)
from tests.inference.admin.test_scheduler_form import UNTOUCHED
from tests.inference.engine.tiny_model import CONTEXT_LENGTH

#: Good as a password to whoever receives at it.
WEBHOOK_PATH: Final = "/hooks/m4rk-token-in-the-path"
_URL: Final = f"https://hooks.example.com{WEBHOOK_PATH}"


def _grant(**values: Any) -> dict[str, Any]:
    return {"weight": 2, "speculation": "on", "on_exhausted": "refuse", "reason": "m", **values}


def _requested(stage: Stage) -> Any:
    return EntitlementFactory(granted_by=stage.another_operator(), approval=Approval.REQUESTED)


def _key_fields(**values: Any) -> dict[str, Any]:
    return {"name": "changed", "scopes": ["read"], "default_lane": "", **values}


def _price() -> Price:
    return Price.objects.create(
        model="m",
        currency="EUR",
        prompt=1,
        cached=1,
        completion=1,
        valid_from=timezone.now() + timedelta(days=1),
    )


def _add_price(stage: Stage) -> Act:
    LanguageModelFactory(name="org/model")
    amounts = {"currency": "eur", "prompt": "0.15", "cached": "0.05", "completion": "0.6"}
    return stage.admin("accounts_price_add", model="org/model", lane="", **amounts)


def _end_selected(stage: Stage) -> Act:
    rows = [EntitlementFactory(), EntitlementFactory()]
    chosen = {
        "action": "end_selected",
        "_selected_action": [str(row.pk) for row in rows],
        "confirmed": "yes",
    }
    return lambda: stage.operator.post(reverse("admin:accounts_entitlement_changelist"), chosen)


def _replay_selected(stage: Stage) -> Act:
    rows = [WebhookDeliveryFactory(state="failed"), WebhookDeliveryFactory(state="failed")]
    chosen = {"action": "replay_selected", "_selected_action": [str(row.pk) for row in rows]}
    return lambda: stage.operator.post(reverse("admin:accounts_webhookdelivery_changelist"), chosen)


def _change_user(stage: Stage) -> Act:
    user = stage.user()
    changed = {"username": "m4rk-renamed", "email": "m4rk-renamed@example.com", "is_staff": "on"}
    return stage.admin("accounts_user_change", user, **changed)


def _change_role(stage: Stage) -> Act:
    membership = MembershipFactory(user=stage.user(), role=Role.MEMBER)
    return stage.admin("accounts_membership_change", membership, role="admin")


def _publish(stage: Stage) -> Act:
    model: Any = LanguageModelFactory(
        name="tiny", directory=str(stage.tiny_model_dir), context_length=CONTEXT_LENGTH
    )
    text = "You are the m4rk-secret of the box."
    stage.secrets.append(text)
    return stage.admin("inference_publishedprefix_add", language_model=model.pk, name="box", text=text)


def _withdraw_prefix(stage: Stage) -> Act:
    text = "You are another m4rk-secret of the box."
    stage.secrets.append(text)
    prefix = PublishedPrefix.objects.create(language_model=LanguageModelFactory(), name="box", text=text)
    return stage.admin("inference_publishedprefix_withdraw", prefix)


def _endpoint(stage: Stage, **fields: Any) -> Any:
    stage.secrets.append(WEBHOOK_PATH)
    return WebhookEndpointFactory(url=_URL, **fields)


def _move_endpoint(stage: Stage) -> Act:
    endpoint = _endpoint(stage)
    stage.secrets.append("m4rk-other-token")
    moved = {"url": "https://hooks.example.com/m4rk-other-token?k=m4rk-other-token", "description": "moved"}
    return stage.admin("accounts_webhookendpoint_change", endpoint, **moved)


def _add_endpoint(stage: Stage) -> Act:
    stage.secrets.append(WEBHOOK_PATH)
    values = {"tenant": TenantFactory().pk, "url": _URL, "description": ""}
    return stage.admin("accounts_webhookendpoint_add", **values)


def _log_out(stage: Stage) -> Act:
    return lambda: stage.operator.post(reverse("admin:logout"))


def _export_usage(stage: Stage) -> Act:
    def read() -> object:
        answer = stage.operator.get(reverse("admin:accounts_usage_csv"))
        assert answer.status_code == 200
        return answer

    return read


ADMIN: Final[dict[str, Scenario]] = {
    "admin: accounts_tenant_add": Scenario(
        ("tenant.create", "entitlement.grant"),
        lambda s: s.admin("accounts_tenant_add", name="Rail", slug="rail", lanes=["low"], time_zone="UTC"),
    ),
    "admin: accounts_tenant_change": Scenario(
        ("tenant.rename", "tenant.set_time_zone", "tenant.set_suffix_pool"),
        lambda s: s.admin(
            "accounts_tenant_change", TenantFactory(), name="Other", time_zone="Asia/Seoul", suffix_pool="on"
        ),
    ),
    "admin: accounts_tenant_close": Scenario(
        ("tenant.close",), lambda s: s.admin("accounts_tenant_close", TenantFactory())
    ),
    "admin: accounts_tenant_reopen": Scenario(
        ("tenant.reopen",),
        lambda s: s.admin("accounts_tenant_reopen", TenantFactory(closed_at=timezone.now())),
    ),
    "admin: accounts_user_add": Scenario(
        ("user.create",),
        lambda s: s.admin("accounts_user_add", username="m4rk-new", email="m4rk-new@example.com"),
    ),
    "admin: accounts_user_change": Scenario(("user.change",), _change_user),
    "admin: accounts_user_new_password": Scenario(
        ("user.reset_password",), lambda s: s.admin("accounts_user_new_password", s.user())
    ),
    "admin: accounts_user_close": Scenario(
        ("user.close",), lambda s: s.admin("accounts_user_close", s.user())
    ),
    "admin: accounts_user_reopen": Scenario(
        ("user.reopen",), lambda s: s.admin("accounts_user_reopen", s.user(is_active=False))
    ),
    "admin: accounts_membership_add": Scenario(
        ("membership.add",),
        lambda s: s.admin(
            "accounts_membership_add", tenant=TenantFactory().pk, user=s.user().pk, role="member"
        ),
    ),
    "admin: accounts_membership_change": Scenario(("membership.change_role",), _change_role),
    "admin: accounts_membership_end": Scenario(
        ("membership.end",),
        lambda s: s.admin("accounts_membership_end", MembershipFactory(user=s.user(), role=Role.MEMBER)),
    ),
    "admin: accounts_lane_add": Scenario(
        ("lane.add",),
        lambda s: s.admin(
            "accounts_lane_add", name="night", rank=9, service_tier="night", description="Late."
        ),
    ),
    "admin: accounts_lane_change": Scenario(
        ("lane.describe", "lane.set_approval"),
        lambda s: s.admin(
            "accounts_lane_change",
            Lane.objects.get(name="high"),
            description="Changed.",
            approval_above_tokens="5",
        ),
    ),
    "admin: accounts_entitlement_add": Scenario(
        ("entitlement.grant",),
        lambda s: s.previewed(
            "accounts_entitlement_add", **_grant(tenant=TenantFactory().pk, lane="high", tokens_per_day=5)
        ),
    ),
    "admin: accounts_entitlement_change": Scenario(
        ("entitlement.change",),
        lambda s: s.previewed("accounts_entitlement_change", EntitlementFactory(), **_grant()),
    ),
    "admin: accounts_entitlement_extend": Scenario(
        ("entitlement.change",),
        lambda s: s.admin(
            "accounts_entitlement_extend",
            EntitlementFactory(ends_at=timezone.now() + timedelta(days=1)),
            ends_at="2099-01-01T00:00",
            reason="longer",
        ),
    ),
    "admin: accounts_entitlement_end": Scenario(
        ("entitlement.end",), lambda s: s.admin("accounts_entitlement_end", EntitlementFactory())
    ),
    "admin: accounts_entitlement_approve": Scenario(
        ("entitlement.approve",),
        lambda s: s.answered("accounts_entitlement_approve", _requested(s), reason="agreed"),
    ),
    "admin: accounts_entitlement_refuse": Scenario(
        ("entitlement.refuse",),
        lambda s: s.admin("accounts_entitlement_refuse", _requested(s), reason="too much"),
    ),
    "admin: accounts_entitlement_withdraw": Scenario(
        ("entitlement.withdraw",), lambda s: s.admin("accounts_entitlement_withdraw", _requested(s))
    ),
    "admin: accounts_entitlement action end_selected": Scenario(
        ("entitlement.end", "entitlement.end"), _end_selected
    ),
    "admin: accounts_apikey_add": Scenario(
        ("api_key.create",),
        lambda s: s.admin(
            "accounts_apikey_add", **_key_fields(tenant=TenantFactory().pk, tokens_per_day="100")
        ),
    ),
    "admin: accounts_apikey_change": Scenario(
        ("api_key.change",),
        lambda s: s.admin("accounts_apikey_change", ApiKeyFactory(), **_key_fields(concurrency="2")),
    ),
    "admin: accounts_apikey_rotate": Scenario(
        ("api_key.rotate", "api_key.create"),
        lambda s: s.admin("accounts_apikey_rotate", ApiKeyFactory(), overlap=1),
    ),
    "admin: accounts_apikey_revoke": Scenario(
        ("api_key.revoke",), lambda s: s.admin("accounts_apikey_revoke", ApiKeyFactory())
    ),
    "admin: accounts_price_add": Scenario(("price.add",), _add_price),
    "admin: accounts_price_withdraw": Scenario(
        ("price.withdraw",), lambda s: s.admin("accounts_price_withdraw", _price())
    ),
    "admin: accounts_webhookendpoint_add": Scenario(("webhook_endpoint.create",), _add_endpoint),
    "admin: accounts_webhookendpoint_change": Scenario(("webhook_endpoint.change",), _move_endpoint),
    "admin: accounts_webhookendpoint_renew_secret": Scenario(
        ("webhook_endpoint.renew_secret",),
        lambda s: s.admin("accounts_webhookendpoint_renew_secret", _endpoint(s)),
    ),
    "admin: accounts_webhookendpoint_end": Scenario(
        ("webhook_endpoint.end",), lambda s: s.admin("accounts_webhookendpoint_end", _endpoint(s))
    ),
    "admin: accounts_webhookdelivery_replay": Scenario(
        ("webhook_delivery.replay",),
        lambda s: s.admin("accounts_webhookdelivery_replay", WebhookDeliveryFactory(state="failed")),
    ),
    "admin: accounts_webhookdelivery action replay_selected": Scenario(
        ("webhook_delivery.replay", "webhook_delivery.replay"), _replay_selected
    ),
    "admin: accounts_usage_csv": Scenario(("usage.export",), _export_usage),
    "admin: inference_languagemodel_change": Scenario(
        ("scheduler_settings.change",),
        lambda s: s.admin(
            "inference_languagemodel_change", LanguageModelFactory(), **{**UNTOUCHED, "slots": "3"}
        ),
    ),
    "admin: inference_languagemodel_profile_again": Scenario(
        ("language_model.profile_again",),
        lambda s: s.admin(
            "inference_languagemodel_profile_again", SpeculationVerdictFactory().language_model
        ),
    ),
    "admin: inference_languagemodel_retire": Scenario(
        ("language_model.retire",),
        lambda s: s.admin("inference_languagemodel_retire", LanguageModelFactory()),
    ),
    "admin: inference_publishedprefix_add": Scenario(("published_prefix.publish",), _publish),
    "admin: inference_publishedprefix_withdraw": Scenario(("published_prefix.withdraw",), _withdraw_prefix),
    "admin: inference_generation_cancel": Scenario(
        ("generation.cancel",), lambda s: s.admin("inference_generation_cancel", s.generation())
    ),
    "admin: logout": Scenario(("user.log_out",), _log_out),
}
