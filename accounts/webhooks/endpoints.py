"""Where a tenant's messages go: made, changed, given a new secret, ended. A secret is returned once and stored nowhere.

Who may do this is decided by who calls: an operator in the admin, a tenant's own administrators in its area.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

from django.db import transaction
from django.utils import timezone

from accounts import audit, pepper
from accounts.audit import ObjectRef
from accounts.credential_text import MASK
from accounts.models import Tenant, User, WebhookEndpoint
from accounts.principal import Actor
from accounts.refusals import ChangeRefusal, ChangeRefused, checked_content, checked_text
from accounts.tenancy import tenant_scope
from accounts.webhooks import signing
from accounts.webhooks.targets import TargetRefused, allowed_hosts, check, target_of
from signalbox.configuration import configuration

#: Live ones of a tenant: each of them gets every message.
MOST_ENDPOINTS = 10

_AUDITED = ("description", "secret_version", "ended_at")


@dataclass(frozen=True, slots=True)
class IssuedEndpoint:
    """An endpoint and, this once, its secret. The secret is not in the ``repr``."""

    endpoint: WebhookEndpoint
    secret: str = field(repr=False)


def create(
    *, tenant: Tenant, url: str, actor: Actor, description: str = "", created_by: User | None = None
) -> IssuedEndpoint:
    """Let ``tenant`` be told at ``url``. Raises ``ChangeRefused``, as for a URL that nothing is sent to."""
    with tenant_scope(tenant.id), transaction.atomic():
        tenant = Tenant.objects.select_for_update(no_key=True).get(id=tenant.id)
        if tenant.closed_at:
            raise ChangeRefused(ChangeRefusal.TENANT_CLOSED, f"{tenant} is closed: it is told nothing.")
        live = list(WebhookEndpoint.objects.filter(ended_at=None))
        if len(live) >= MOST_ENDPOINTS:
            raise ChangeRefused(
                ChangeRefusal.TOO_MANY_ENDPOINTS,
                f"{tenant} has {len(live)} webhook endpoints, which is the most. End one first.",
            )
        endpoint = WebhookEndpoint.objects.create(
            tenant=tenant,
            url=_checked_url(url, live),
            description=_checked_description(description),
            pepper_id=pepper.current_id(),
            created_by=created_by,
        )
        audit.record(
            actor,
            "webhook_endpoint.create",
            _reference(endpoint),
            None,
            _recorded(endpoint),
            tenant_id=tenant.id,
        )
    return IssuedEndpoint(endpoint, signing.secret_of(endpoint))


def change(*, endpoint: WebhookEndpoint, url: str, description: str, actor: Actor) -> WebhookEndpoint:
    """Move a live endpoint; what waits goes to the new URL, signed with the same secret. Raises ``ChangeRefused``."""
    with tenant_scope(endpoint.tenant_id), transaction.atomic():
        endpoint = _locked(endpoint)
        before = _recorded(endpoint)
        others = WebhookEndpoint.objects.filter(ended_at=None).exclude(id=endpoint.id)
        endpoint.url = _checked_url(url, list(others))
        endpoint.description = _checked_description(description)
        _save(endpoint, before, "webhook_endpoint.change", actor, "url", "description")
    return endpoint


def renew_secret(*, endpoint: WebhookEndpoint, actor: Actor) -> IssuedEndpoint:
    """Give a live endpoint a new secret: every message from now on is signed with it, and none with the old one.

    Raises ``ChangeRefused``.
    """
    with tenant_scope(endpoint.tenant_id), transaction.atomic():
        endpoint = _locked(endpoint)
        before = _recorded(endpoint)
        endpoint.secret_version += 1
        endpoint.pepper_id = pepper.current_id()
        _save(endpoint, before, "webhook_endpoint.renew_secret", actor, "secret_version", "pepper_id")
    return IssuedEndpoint(endpoint, signing.secret_of(endpoint))


def end(*, endpoint: WebhookEndpoint, actor: Actor) -> WebhookEndpoint:
    """Send nothing more there; what waits is given up. Ending an ended one changes nothing."""
    with tenant_scope(endpoint.tenant_id), transaction.atomic():
        endpoint = WebhookEndpoint.objects.select_for_update(of=("self",), no_key=True).get(id=endpoint.id)
        if endpoint.ended_at is None:
            before = _recorded(endpoint)
            endpoint.ended_at = timezone.now()
            _save(endpoint, before, "webhook_endpoint.end", actor, "ended_at")
    return endpoint


def _locked(endpoint: WebhookEndpoint) -> WebhookEndpoint:
    """The endpoint, locked. Raises ``ChangeRefused`` for one that has ended."""
    # The tenant first, as ``create`` does: two changes cannot both take the last free place, or the same URL.
    Tenant.objects.select_for_update(no_key=True).get(id=endpoint.tenant_id)
    locked: WebhookEndpoint = WebhookEndpoint.objects.select_for_update(of=("self",), no_key=True).get(
        id=endpoint.id
    )
    if locked.ended_at:
        raise ChangeRefused(ChangeRefusal.ENDPOINT_ENDED, f"{locked} has ended. Make a new one instead.")
    return locked


def _save(
    endpoint: WebhookEndpoint, before: dict[str, object], action: str, actor: Actor, *changed: str
) -> None:
    after = _recorded(endpoint)
    if after != before:
        endpoint.save(update_fields=list(changed))
        audit.record(actor, action, _reference(endpoint), before, after, tenant_id=endpoint.tenant_id)


def _reference(endpoint: WebhookEndpoint) -> ObjectRef:
    """How the audit names it: by its host, for a URL may be longer than a name."""
    return ObjectRef(kind="webhook_endpoint", id=str(endpoint.id), name=target_of(endpoint.url).host)


def _recorded(endpoint: WebhookEndpoint) -> dict[str, Any]:
    """For the audit, which holds no secrets: what stands behind a URL's host may be as good as a password.

    A checksum tells whether it is another one.
    """
    target = target_of(endpoint.url)
    hidden = "" if target.path == "/" else MASK
    return {
        "url": f"https://{target.host_header}/{hidden}",
        "url_sha256": hashlib.sha256(endpoint.url.encode()).hexdigest(),
        **audit.fields_of(endpoint, *_AUDITED),
    }


def _checked_url(url: str, others: list[WebhookEndpoint]) -> str:
    """``url``, if something may be sent there. A host's name is looked up when something is sent, not now."""
    url = url.strip()
    try:
        target = target_of(url)
        if target.address:
            check(target, [target.address], allowed_hosts(tuple(configuration().webhook_private_hosts)))
    except TargetRefused as refusal:
        raise ChangeRefused(ChangeRefusal.INVALID, str(refusal), field="url") from refusal
    if any(other.url == url for other in others):
        raise ChangeRefused(
            ChangeRefusal.NAME_TAKEN, "There is a webhook endpoint with this URL already.", field="url"
        )
    return checked_content(url, field="url", most=500)


def _checked_description(description: str) -> str:
    return checked_text(description, field="description", least=0, most=200)
