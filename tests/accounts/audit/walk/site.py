"""Scenarios of the site's own pages: tenants' areas, log-in and password, the chat's conversations."""

from __future__ import annotations

from typing import Any, Final

from django.test import Client
from django.urls import reverse

from accounts.models import User, WebhookDelivery
from accounts.tenancy import every_tenant
from tests.accounts.audit.walk.admin import WEBHOOK_PATH
from tests.accounts.audit.walk.stage import TYPED, Act, Scenario, Stage
from tests.factories import (
    PASSWORD,
    ApiKeyFactory,
    ConversationFactory,
    EntitlementFactory,
    WebhookDeliveryFactory,
    WebhookEndpointFactory,
)

_CHOSEN: Final = "m4rk-chosen-password"


def _page(name: str, *arguments: object) -> str:
    return reverse(name, args=["rail", *arguments])


def _posts(client: Client, page: str, /, **values: Any) -> Act:
    """A form that is no once-only one, as a browser sends it."""
    return lambda: client.post(page, values)


def _new_key(stage: Stage) -> Act:
    tenant, owner = stage.rail()
    EntitlementFactory(tenant=tenant)
    return stage.sends(_page("tenant-key-new"), {"name": "app", "scopes": ["inference"]}, owner)


def _change_key(stage: Stage) -> Act:
    tenant, owner = stage.rail()
    key: Any = ApiKeyFactory(tenant=tenant)
    return _posts(owner, _page("tenant-key", key.id), name="changed", scopes=["read"])


def _rotate_key(stage: Stage) -> Act:
    tenant, owner = stage.rail()
    key: Any = ApiKeyFactory(tenant=tenant)
    return stage.sends(_page("tenant-key-rotate", key.id), {"overlap": 1}, owner)


def _revoke_key(stage: Stage) -> Act:
    tenant, owner = stage.rail()
    key: Any = ApiKeyFactory(tenant=tenant)
    return _posts(owner, _page("tenant-key-revoke", key.id))


def _endpoint_of(stage: Stage) -> tuple[Any, Client]:
    stage.secrets.append(WEBHOOK_PATH)
    tenant, owner = stage.rail()
    return WebhookEndpointFactory(tenant=tenant, url=f"https://hooks.example.com{WEBHOOK_PATH}"), owner


def _new_endpoint(stage: Stage) -> Act:
    stage.secrets.append(WEBHOOK_PATH)
    _, owner = stage.rail()
    values = {"url": f"https://hooks.example.com{WEBHOOK_PATH}", "description": "pager"}
    return stage.sends(_page("tenant-webhook-new"), values, owner)


def _change_endpoint(stage: Stage) -> Act:
    endpoint, owner = _endpoint_of(stage)
    stage.secrets.append("m4rk-moved")
    return _posts(
        owner, _page("tenant-webhook", endpoint.id), url="https://a.example/m4rk-moved", description=""
    )


def _renew_secret(stage: Stage) -> Act:
    endpoint, owner = _endpoint_of(stage)
    return stage.sends(_page("tenant-webhook-secret", endpoint.id), {}, owner)


def _end_endpoint(stage: Stage) -> Act:
    endpoint, owner = _endpoint_of(stage)
    return _posts(owner, _page("tenant-webhook-end", endpoint.id))


def _replay(stage: Stage) -> Act:
    endpoint, owner = _endpoint_of(stage)
    failed: Any = WebhookDeliveryFactory(endpoint=endpoint, state=WebhookDelivery.State.FAILED)
    return _posts(owner, _page("tenant-webhook-replay", endpoint.id, failed.id))


def _export_usage(stage: Stage) -> Act:
    _, owner = stage.rail()
    return lambda: owner.get(_page("tenant-usage-csv"))


def _log_in(stage: Stage) -> Act:
    """Once in vain, once not. What was typed in vain is nobody's business, least of all the auditor's."""
    user: User = stage.user()
    stage.secrets += [PASSWORD, "m4rk-typed-in-the-wrong-field"]

    def sign_in() -> None:
        page = reverse("login")
        client = Client(REMOTE_ADDR="198.51.100.77")
        client.post(page, {"username": "m4rk-typed-in-the-wrong-field", "password": TYPED})
        client.post(page, {"username": user.username, "password": TYPED})
        client.post(page, {"username": user.username, "password": PASSWORD})

    return sign_in


def _log_out(stage: Stage) -> Act:
    _, owner = stage.rail()
    return _posts(owner, reverse("logout"))


def _set_password(stage: Stage) -> Act:
    _, owner = stage.rail()
    stage.secrets += [PASSWORD, _CHOSEN]

    def change() -> None:
        page = reverse("password")
        owner.post(page, {"old_password": TYPED, "password": _CHOSEN, "again": _CHOSEN})
        owner.post(page, {"old_password": PASSWORD, "password": _CHOSEN, "again": _CHOSEN})

    return change


def _conversation(stage: Stage) -> tuple[str, Client]:
    tenant, owner = stage.rail()
    stage.secrets.append("m4rk-title")
    row: Any = ConversationFactory(
        tenant=tenant, user=User.objects.get(username="m4rk-owner"), title="m4rk-title of a chat"
    )
    with every_tenant("the scenario is made past the verbs"):
        row.messages.create(position=0, role="user", content="m4rk-question to nobody else")
    stage.secrets.append("m4rk-question")
    return reverse("chat-conversation", args=[row.id.hex]), owner


def _delete_conversation(stage: Stage) -> Act:
    url, owner = _conversation(stage)
    return lambda: owner.delete(url)


_TENANT: Final = "page: POST /tenant/<slug:slug>"
_FAILED: Final = "user.log_in_failed"

SITE: Final[dict[str, Scenario]] = {
    f"{_TENANT}/keys/new/": Scenario(("api_key.create",), _new_key),
    f"{_TENANT}/keys/<uuid:key_id>/": Scenario(("api_key.change",), _change_key),
    f"{_TENANT}/keys/<uuid:key_id>/rotate/": Scenario(("api_key.rotate", "api_key.create"), _rotate_key),
    f"{_TENANT}/keys/<uuid:key_id>/revoke/": Scenario(("api_key.revoke",), _revoke_key),
    f"{_TENANT}/webhooks/new/": Scenario(("webhook_endpoint.create",), _new_endpoint),
    f"{_TENANT}/webhooks/<uuid:endpoint_id>/": Scenario(("webhook_endpoint.change",), _change_endpoint),
    f"{_TENANT}/webhooks/<uuid:endpoint_id>/secret/": Scenario(
        ("webhook_endpoint.renew_secret",), _renew_secret
    ),
    f"{_TENANT}/webhooks/<uuid:endpoint_id>/end/": Scenario(("webhook_endpoint.end",), _end_endpoint),
    f"{_TENANT}/webhooks/<uuid:endpoint_id>/<uuid:delivery_id>/": Scenario(
        ("webhook_delivery.replay",), _replay
    ),
    "page: GET /tenant/<slug:slug>/usage.csv": Scenario(("usage.export",), _export_usage),
    "page: POST /login/": Scenario((_FAILED, _FAILED, "user.log_in"), _log_in),
    "page: POST /logout/": Scenario(("user.log_out",), _log_out),
    "page: POST /password/": Scenario((_FAILED, "user.set_password"), _set_password),
    "page: DELETE /chat/api/conversations/<str:conversation>": Scenario(
        ("conversation.delete",), _delete_conversation
    ),
}
