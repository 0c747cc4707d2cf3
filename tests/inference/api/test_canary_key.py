"""Case A1: a key is used wherever it can go wrong, and found nowhere: not in the database, Valkey, logs, metrics,
answers, the audit or what is exported of it."""

from __future__ import annotations

import copy
import io
import json
import logging
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any

import pytest
import redis
from asgiref.sync import sync_to_async
from django.contrib.sessions.models import Session
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse

from accounts.audit import export
from accounts.audit.selection import Selection
from accounts.models import AuditEvent, Tenant
from inference.models import LanguageModel
from signalbox import secret_files
from tests.factories import (
    ACTOR,
    ApiKeyFactory,
    OperatorFactory,
    TenantFactory,
    UserFactory,
)
from tests.fixtures.admin import save
from tests.fixtures.log_lines import product_formatter
from tests.fixtures.stored_text import stored_text, text_in_store
from tests.inference.api.asgi_client import Answer, AsgiClient
from tests.inference.api.bodies import CHAT, TEXT, chat, text
from tests.inference.api.hand import Hand
from tests.inference.api.socket_client import Connect

pytestmark = pytest.mark.django_db(transaction=True)

#: Statuses of a place that the key does not fit into.
REFUSED = {400, 401, 403, 404, 409, 415}

Nowhere = Callable[[str], Awaitable[None]]


def of_the_secret(raw: str) -> str:
    """The first signs of the part that is secret: also a key that was cut short must not be found."""
    return raw.rpartition("_")[2][:10]


@pytest.fixture
def nowhere(transactional_db: None, valkey: redis.Redis, caplog: pytest.LogCaptureFixture) -> Nowhere:
    """Fails where a key is found in what the installation has kept, written or tells."""
    caplog.set_level(logging.DEBUG)
    formats = [product_formatter(format_) for format_ in ("console", "json")]

    async def check(raw: str) -> None:
        secret = of_the_secret(raw)
        # Before the keys are made that the places are read with.
        for record in [*caplog.records]:
            assert not any(secret in written.format(copy.copy(record)) for written in formats), record.name
        for name, place in (await sync_to_async(_kept)(valkey)).items():
            assert secret not in place, name
        token = secret_files.read_or_create("metrics_token")
        metrics = await AsgiClient().get("/metrics", headers={"Authorization": f"Bearer {token}"})
        assert metrics.status == 200
        assert secret not in metrics.body.decode(), "the metrics"
        operators = await sync_to_async(TenantFactory)()
        reader = AsgiClient((await sync_to_async(ApiKeyFactory)(tenant=operators, scopes=["operator"])).raw)
        told = await reader.get("/v1/organization/audit_logs?limit=100")
        assert told.status == 200
        assert secret not in told.body.decode(), "the audit over the API"

    return check


def _kept(valkey: redis.Redis) -> dict[str, str]:
    exported = b"".join(export.records(Selection(), with_personal=True, actor=ACTOR))
    return {
        "an export of the audit": exported.decode(),
        "the database": stored_text(),
        "a session": str([session.get_decoded() for session in Session.objects.all()]),
        "Valkey": text_in_store(valkey),
    }


def repeats_nothing(answer: Answer, raw: str) -> None:
    secret = of_the_secret(raw)
    assert secret not in answer.body.decode(), "an answer"
    assert secret not in json.dumps(answer.headers), "an answer's head"


async def test_a1_in_a_request_for_a_generation(
    api: AsgiClient, hand: Hand, key: str, model: LanguageModel, nowhere: Nowhere
) -> None:
    cut = key[:40]
    for place in (
        api.post(CHAT, chat(model=key)),
        api.post(TEXT, text(model=f"models/{key}")),
        api.post(CHAT, chat(**{key: 1})),
        api.post(CHAT, chat(**{cut: 1})),
        api.post(CHAT, chat(metadata={"key": key}, temperature=3)),
        api.post(CHAT, chat(service_tier=key)),
        api.post(CHAT, chat(lane=key[:30])),
        api.post(CHAT, chat(stop=[key] * 5)),
        api.post(CHAT, chat(seed=key)),
        api.post(CHAT, chat(tools=key)),
        api.post(CHAT, chat(logit_bias={key: 1})),
        api.post(CHAT, chat(messages=[{"role": key, "content": key}])),
        api.post(CHAT, chat(messages=[{"role": "user", "content": [{"type": key}]}])),
        api.post(CHAT, chat(messages=[{"role": "user", "content": "Hi", key: key}])),
        api.post(CHAT, raw=b'{"model": ' + key.encode()),
        api.post(CHAT, chat(), headers={"X-Priority": key}),
        api.post(CHAT, chat(), headers={"content-type": key}),
        api.post(CHAT, chat(), headers={"Idempotency-Key": key}),
        api.post(CHAT, chat(), headers={"Idempotency-Key": f"job {cut}"}),
        api.get(f"/v1/models/{key}"),
        api.get("/v1/models", headers={"x-api-key": f"{key}x", "Authorization": f"Basic {key}"}),
        api.get("/v1/models", headers={"Authorization": f"Bearer {key}{key}"}),
        api.get(f"/v1/generations/{key}"),
        api.get("/v1/models?limit=" + key),
        api.get("/v1/usage?since=" + key),
        api.get("/v1/generations/gen_" + "0" * 32 + "/events", headers={"Last-Event-ID": key}),
    ):
        answer = await place
        assert answer.status in REFUSED, answer.body
        repeats_nothing(answer, key)
    await nowhere(key)


async def test_a1_over_its_budget_its_rate_and_outside_of_its_lanes_and_models(
    tenant: Tenant, model: LanguageModel, nowhere: Nowhere
) -> None:
    for narrowing, status, code in (
        ({"allowance__tokens_per_day": 1}, 429, "insufficient_quota"),
        ({"allowance__requests_per_minute": 0}, 429, "rate_limit_exceeded"),
        ({"allowance__concurrency": 0}, 429, "concurrency_limit_exceeded"),
        ({"allowed_lanes": ["high"], "default_lane_id": "high"}, 403, "no_entitlement"),
        ({"allowed_models": ["another"]}, 404, "model_not_found"),
        ({"allowed_networks": ["192.0.2.1"]}, 401, "invalid_api_key"),
        ({"scopes": ["read"]}, 403, "insufficient_scope"),
    ):
        raw = (await sync_to_async(ApiKeyFactory)(tenant=tenant, **narrowing)).raw
        answer = await AsgiClient(raw).post(CHAT, chat(service_tier="flex"))
        assert (answer.status, answer.error["code"]) == (status, code)
        repeats_nothing(answer, raw)
        await nowhere(raw)


async def test_a1_in_a_frame_of_the_chat_socket(key: str, connect: Connect, nowhere: Nowhere) -> None:
    socket = await connect(key=key)
    for frame in (
        {"type": key},
        {"type": "generate", "ref": "1", **chat(model=key)},
        {"type": "generate", "ref": "1", **chat(service_tier=key)},
        {"type": "generate", "ref": "1", **chat(**{key: 1})},
        {"type": "generate", "ref": "1", **chat(conversation=key)},
        {"type": "resume", "generation": key, "after": 0},
        {"type": "cancel", "generation": key},
        {"type": "authenticate", "api_key": f"{key}x"},
    ):
        await socket.send(**frame)
        error = await socket.until_error()
        assert of_the_secret(key) not in json.dumps(error)
    await nowhere(key)


async def test_a1_in_what_an_administrator_writes_and_asks_over_the_api(
    tenant: Tenant, key: str, nowhere: Nowhere
) -> None:
    operator = AsgiClient((await sync_to_async(ApiKeyFactory)(tenant=tenant, scopes=["operator"])).raw)
    root = "/v1/organization"
    project = f"{root}/projects/proj_{tenant.id.hex}"
    logs, usage = f"{root}/audit_logs", f"{root}/usage/completions?start_time=0"
    for place in (
        operator.post(f"{root}/projects", {"name": key}),
        operator.post(f"{root}/projects", {"name": "a", "slug": key}),
        operator.post(f"{root}/projects", {"name": "a", "time_zone": key}),
        operator.post(f"{root}/projects", {"name": "a", "lanes": [key]}),
        operator.post(project, {"name": f"for {key}"}),
        operator.post(f"{project}/api_keys", {"name": key}),
        operator.post(f"{project}/api_keys", {"name": "a", "scopes": [key]}),
        operator.post(f"{project}/api_keys", {"name": "a", "default_lane": key}),
        operator.post(f"{project}/api_keys", {"name": "a", "allowed_lanes": [key]}),
        operator.post(f"{project}/api_keys", {"name": "a", "allowed_models": [key]}),
        operator.post(f"{project}/api_keys", {"name": "a", "allowed_networks": [key]}),
        operator.post(f"{project}/api_keys", {"name": "a", key: 1}),
        operator.post(f"{project}/api_keys", {"name": "a"}, headers={"Idempotency-Key": key}),
        operator.post(f"{project}/api_keys/{key}", {"name": "a"}),
        operator.post(f"{project}/service_accounts", {"name": key}),
        operator.post(f"{project}/rate_limits/rl-{key}", {}),
        operator.get(f"{root}/projects/{key}"),
        operator.get(f"{root}/projects?after={key}"),
        operator.get(f"{root}/projects?{key}=1"),
        operator.get(f"{project}/api_keys/{key}"),
        operator.get(f"{usage}&project_ids[]={key}"),
        operator.get(f"{usage}&group_by[]={key}"),
        operator.get(f"{usage}&page={key}"),
        operator.get(f"{logs}?after={key}"),
        operator.get(f"{logs}?before={key}"),
        operator.get(f"{logs}?limit={key}"),
        operator.get(f"{logs}?effective_at[gt]={key}"),
        operator.get(f"{logs}?effective_at[{key}]=1"),
        operator.get(f"{logs}?project_ids[]={key}"),
        operator.get(f"{logs}?event_types[]={key}"),
        operator.get(f"{logs}?actor_ids[]={key}"),
    ):
        answer = await place
        assert answer.status in REFUSED, answer.body
        repeats_nothing(answer, key)
    # What could be an address, a model or an id is looked for, and is not there.
    for path in (
        f"{logs}?actor_emails[]={key}",
        f"{logs}?resource_ids[]={key}",
        f"{usage}&models[]={key}",
        f"{root}/costs?start_time=0&line_items[]={key}",
    ):
        answer = await operator.get(path)
        assert answer.status == 200, answer.body
        repeats_nothing(answer, key)
    assert await AuditEvent.objects.acount() == 0
    await nowhere(key)


@pytest.mark.slow
@pytest.mark.usefixtures("plain_static")
async def test_a1_on_the_pages(tenant: Tenant, key: str, nowhere: Nowhere) -> None:
    """A form gives what was typed back to whoever typed it; what is said of it does not repeat it."""

    @sync_to_async
    def typed() -> list[str]:
        stranger, operator = Client(), Client()
        operator.force_login(OperatorFactory())
        said: list[str] = []
        for typed_in in (
            {"username": key, "password": key},
            {"username": "nobody", "password": key},
            {"username": UserFactory().username, "password": key},
        ):
            said += _complaints(stranger.post(reverse("login"), typed_in))
        newcomer = TenantFactory()
        grant = {"tenant": newcomer.pk, "lane": "low", "weight": 1, "on_exhausted": "refuse", "reason": key}
        for page, fields in (
            ("apikey", {"tenant": tenant.pk, "name": key, "scopes": ["read"], "default_lane": ""}),
            ("apikey", {"tenant": tenant.pk, "name": "a", "scopes": ["read"], "allowed_networks": key}),
            ("entitlement", grant),
            ("user", {"username": f"a.{key}"}),
            ("tenant", {"name": key, "slug": "a", "time_zone": "UTC"}),
            ("webhookendpoint", {"tenant": tenant.pk, "url": f"https://hooks.example.com/{key}"}),
        ):
            answer = save(operator, reverse(f"admin:accounts_{page}_add"), fields)
            assert answer.status_code == HTTPStatus.OK, page
            said += _complaints(answer)
        for page in ("apikey", "user", "tenant", "auditevent"):
            operator.get(reverse(f"admin:accounts_{page}_changelist"), {"q": key})
            operator.get(f"{reverse(f'admin:accounts_{page}_changelist')}{key}/")
        for path in (f"/{key}", f"/chat/?conversation={key}", f"/admin/{key}/"):
            operator.get(path)
        return said

    said = await typed()
    assert len(said) >= 8
    assert of_the_secret(key) not in "\n".join(said)
    assert not await AuditEvent.objects.exclude(action__startswith="user.log_in").aexists()
    await nowhere(key)


def _complaints(answer: Any) -> list[str]:
    """What a page says of a form that it did not take."""
    context = answer.context
    form = context["adminform"].form if "adminform" in context else context["form"]
    return [str(error) for errors in form.errors.values() for error in errors]


async def test_a1_on_the_command_line(tenant: Tenant, key: str, nowhere: Nowhere) -> None:
    @sync_to_async
    def run(*arguments: str) -> str:
        output = io.StringIO()
        with pytest.raises(CommandError) as refused:
            call_command(*arguments, stdout=output, stderr=output)
        return f"{output.getvalue()}{refused.value}"

    for arguments in (
        ("key", "create", "--tenant", tenant.slug, "--name", key),
        ("key", "create", "--tenant", tenant.slug, "--name", "a", "--models", key),
        ("key", "create", "--tenant", tenant.slug, "--name", "a", "--from", key),
        ("key", "revoke", key),
        ("tenant", "create", "a", "--name", key),
        ("user", "create", key),
        ("entitlement", "grant", "--tenant", tenant.slug, "--lane", "low", "--reason", key),
    ):
        assert of_the_secret(key) not in await run(*arguments), arguments
    await nowhere(key)
