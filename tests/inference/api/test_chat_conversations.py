"""What the chat page asks for beside the socket: by session, with a CSRF token, and every refusal as JSON."""

from __future__ import annotations

import json
import uuid
from datetime import timedelta
from typing import Any

import pytest
import redis
from django.test import Client
from django.utils import timezone

from accounts.models import AuditEvent, Lane, Role, Tenant, User
from accounts.tenancy import every_tenant
from inference import cancellation
from inference.models import ChatMessage, Conversation, Generation, LanguageModel
from tests.factories import (
    ConversationFactory,
    EntitlementFactory,
    GenerationFactory,
    LanguageModelFactory,
    MembershipFactory,
    TenantFactory,
    UserFactory,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("valkey")]

OPTIONS = "/chat/api/options"
CONVERSATIONS = "/chat/api/conversations"
NOW = timezone.now()


@pytest.fixture
def model() -> LanguageModel:
    made: LanguageModel = LanguageModelFactory(name="org/model")
    return made


@pytest.fixture
def tenant() -> Tenant:
    made: Tenant = TenantFactory(name="Works")
    EntitlementFactory(tenant=made, lane=Lane.objects.get(name="low"))
    EntitlementFactory(tenant=made, lane=Lane.objects.get(name="high"))
    return made


@pytest.fixture
def user(tenant: Tenant) -> User:
    made: User = UserFactory(username="ada")
    MembershipFactory(tenant=tenant, user=made)
    return made


@pytest.fixture
def page(user: User) -> Client:
    """The page's own requests, signed in."""
    return signed_in(user)


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def send(client: Client, method: str, path: str, body: Any) -> Any:
    return client.generic(method, path, json.dumps(body), content_type="application/json")


def refused(answer: Any, status: int, code: str, param: str | None = None) -> None:
    assert answer.status_code == status, answer.content
    assert answer["Content-Type"] == "application/json"
    assert "no-store" in answer["Cache-Control"]
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert (error["code"], error["param"]) == (code, param)
    assert error["message"]


def spoken_in(
    tenant: Tenant, user: User, model: LanguageModel, title: str = "Signals", **generation: Any
) -> Conversation:
    """A conversation with a question and an answer."""
    conversation: Conversation = ConversationFactory(tenant=tenant, user=user, model=model, title=title)
    made = GenerationFactory(tenant=tenant, user=user, model=model, **generation)
    with every_tenant("the test sets up"):
        ChatMessage.objects.create(conversation=conversation, position=0, role="user", content="What?")
        ChatMessage.objects.create(
            conversation=conversation, position=1, role="assistant", content="That.", generation=made
        )
    return conversation


def ended(**fields: Any) -> dict[str, Any]:
    """A generation's fields when it has ended."""
    return {"state": "completed", "finish_reason": "stop", "ended_at": timezone.now(), **fields}


# Who may


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", OPTIONS),
        ("GET", CONVERSATIONS),
        ("POST", CONVERSATIONS),
        ("DELETE", f"{CONVERSATIONS}/{'0' * 32}"),
    ],
)
def test_who_is_not_signed_in_is_told_so_and_not_sent_to_a_page(method: str, path: str) -> None:
    refused(Client().generic(method, path), 401, "not_authenticated")


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        (OPTIONS, "GET"),
        (CONVERSATIONS, "GET, POST"),
        (f"{CONVERSATIONS}/{'0' * 32}", "GET, PATCH, DELETE"),
    ],
)
def test_another_method_is_refused_with_those_there_are(page: Client, path: str, allowed: str) -> None:
    answer = page.put(path)
    refused(answer, 405, "method_not_allowed")
    assert answer["Allow"] == allowed


def test_what_changes_something_needs_the_csrf_token(
    tenant: Tenant, user: User, model: LanguageModel
) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(user)
    body = json.dumps({"tenant": tenant.id.hex, "model": model.name})
    settings = {"content_type": "application/json"}
    # The page that says so is not under test here, but it needs static files or does without.
    assert client.post(CONVERSATIONS, body, **settings).status_code == 403
    client.cookies["csrftoken"] = "c" * 32
    taken = client.post(CONVERSATIONS, body, headers={"X-CSRFToken": "c" * 32}, **settings)
    assert taken.status_code == 201


# The choices


def test_the_choices_are_the_members_tenants_their_lanes_and_the_models_that_chat(
    page: Client, user: User, tenant: Tenant, model: LanguageModel
) -> None:
    LanguageModelFactory(name="no/template", has_chat_template=False)
    LanguageModelFactory(name="old/model", retired_at=NOW)
    yard = TenantFactory(name="Yard")
    MembershipFactory(tenant=yard, user=user, role=Role.VIEWER)
    EntitlementFactory(tenant=yard, lane=Lane.objects.get(name="high"), ended_at=NOW)
    TenantFactory(name="Foreign")
    offered = page.get(OPTIONS).json()
    assert offered["user"] == {"name": "ada"}
    assert offered["models"] == [{"id": "org/model", "context_length": model.context_length}]
    told = {
        each["name"]: (each["id"], each["may_generate"], [lane["name"] for lane in each["lanes"]])
        for each in offered["tenants"]
    }
    assert told == {"Works": (tenant.id.hex, True, ["high", "low"]), "Yard": (yard.id.hex, False, [])}
    assert offered["urls"]["conversations"] == CONVERSATIONS


# A list of them


def listed(page: Client, tenant: Tenant, **query: Any) -> tuple[list[str], bool]:
    answer = page.get(CONVERSATIONS, {"tenant": tenant.id.hex, **query}).json()
    assert answer["object"] == "list"
    return [each["title"] for each in answer["data"]], answer["has_more"]


def test_conversations_are_listed_in_pages_last_used_first(
    page: Client, tenant: Tenant, user: User, model: LanguageModel
) -> None:
    made = [spoken_in(tenant, user, model, title) for title in ("one", "two", "three")]
    with every_tenant("the test sets the clock"):
        for minutes, conversation in enumerate(made):
            Conversation.objects.filter(id=conversation.id).update(
                updated_at=NOW + timedelta(minutes=minutes)
            )
    ConversationFactory(tenant=tenant, user=user, model=model, title="nothing was said in it")
    assert listed(page, tenant) == (["three", "two", "one"], False)
    assert listed(page, tenant, limit=2) == (["three", "two"], True)
    assert listed(page, tenant, limit=2, after=made[1].id.hex) == (["one"], False)


def test_nobody_elses_are_listed_or_found(
    page: Client, tenant: Tenant, user: User, model: LanguageModel
) -> None:
    colleague = MembershipFactory(tenant=tenant).user
    foreign = TenantFactory()
    theirs = [spoken_in(tenant, colleague, model), spoken_in(foreign, colleague, model)]
    assert listed(page, tenant) == ([], False)
    refused(page.get(CONVERSATIONS, {"tenant": foreign.id.hex}), 403, "not_a_member")
    refused(page.get(CONVERSATIONS, {"tenant": "nonsense"}), 403, "not_a_member")
    for name in [*(each.id.hex for each in theirs), uuid.uuid4().hex, "nonsense"]:
        path = f"{CONVERSATIONS}/{name}"
        refused(page.get(path), 404, "conversation_not_found")
        refused(send(page, "PATCH", path, {"title": "mine"}), 404, "conversation_not_found")
        refused(page.delete(path), 404, "conversation_not_found")
    with every_tenant("the test counts"):
        assert Conversation.objects.count() == 2


# One of them


def test_a_conversation_is_started_and_read(page: Client, tenant: Tenant, model: LanguageModel) -> None:
    body = {"tenant": tenant.id.hex, "model": model.name, "lane": "low"}
    started = send(page, "POST", CONVERSATIONS, body)
    assert started.status_code == 201
    told = started.json()
    assert (told["tenant"], told["model"], told["lane"], told["title"]) == (
        tenant.id.hex,
        model.name,
        "low",
        "",
    )
    assert told["url"] == f"/chat/c/{told['id']}"
    assert page.get(f"{CONVERSATIONS}/{told['id']}").json() == {"conversation": told, "turns": []}


@pytest.mark.parametrize(
    ("change", "status", "code", "param"),
    [
        ({"model": "no/such"}, 404, "model_not_found", "model"),
        ({"lane": "no-such"}, 400, "unknown_lane", "lane"),
        ({"lane": 7}, 400, "invalid_type", "lane"),
        ({"model": None}, 400, "missing_required_parameter", "model"),
        ({"colour": "red"}, 400, "unsupported_parameter", "colour"),
    ],
)
def test_what_a_conversation_cannot_be_started_with_is_named(
    page: Client,
    tenant: Tenant,
    model: LanguageModel,
    change: dict[str, Any],
    status: int,
    code: str,
    param: str,
) -> None:
    body = {"tenant": tenant.id.hex, "model": model.name, **change}
    refused(send(page, "POST", CONVERSATIONS, body), status, code, param)
    with every_tenant("the test counts"):
        assert not Conversation.objects.exists()


def test_a_viewer_may_read_and_not_start(tenant: Tenant, model: LanguageModel) -> None:
    viewer = MembershipFactory(tenant=tenant, role=Role.VIEWER).user
    client = signed_in(viewer)
    assert listed(client, tenant) == ([], False)
    body = {"tenant": tenant.id.hex, "model": model.name}
    refused(send(client, "POST", CONVERSATIONS, body), 403, "insufficient_scope")


def test_an_answer_is_told_in_the_words_of_the_sockets_frames(
    page: Client, tenant: Tenant, user: User, model: LanguageModel
) -> None:
    times = {
        "claimed_at": NOW + timedelta(milliseconds=20),
        "first_token_at": NOW + timedelta(milliseconds=120),
        "ended_at": NOW + timedelta(milliseconds=1120),
    }
    counts = {
        "completion_tokens": 11,
        "cached_tokens": 4,
        "accepted_prediction_tokens": 6,
        "rejected_prediction_tokens": 2,
    }
    conversation = spoken_in(tenant, user, model, **ended(**counts, **times))
    with every_tenant("the test sets the clock"):
        Generation.objects.update(created_at=NOW)
    question, answer = page.get(f"{CONVERSATIONS}/{conversation.id.hex}").json()["turns"]
    assert (question["role"], question["content"], question["answer"]) == ("user", "What?", None)
    assert (answer["role"], answer["content"]) == ("assistant", "That.")
    told = answer["answer"]
    assert (told["live"], told["state"], told["finish_reason"], told["error"]) == (
        False,
        "completed",
        "stop",
        None,
    )
    assert told["usage"]["total_tokens"] == 12 + 11
    assert told["usage"]["prompt_tokens_details"] == {"cached_tokens": 4}
    assert told["usage"]["completion_tokens_details"] == {
        "accepted_prediction_tokens": 6,
        "rejected_prediction_tokens": 2,
        "reasoning_tokens": 0,
    }
    assert told["timings"] == {
        "queue_ms": 20,
        "first_token_ms": 120,
        "total_ms": 1120,
        "tokens_per_second": 10.0,
    }


@pytest.mark.parametrize(
    ("fields", "code", "said"),
    [
        ({"failure_code": "out_of_memory", "failure_message": "No room."}, "out_of_memory", "No room."),
        ({"state": "expired"}, "generation_expired", "had not finished in time"),
    ],
)
def test_an_answer_that_failed_says_why(
    page: Client,
    tenant: Tenant,
    user: User,
    model: LanguageModel,
    fields: dict[str, str],
    code: str,
    said: str,
) -> None:
    conversation = spoken_in(
        tenant, user, model, **ended(**{"state": "failed", "finish_reason": "", **fields})
    )
    turns = page.get(f"{CONVERSATIONS}/{conversation.id.hex}").json()["turns"]
    error = turns[-1]["answer"]["error"]
    assert error["code"] == code
    assert said in error["message"]


def test_a_new_title_is_one_line_and_a_blank_one_changes_nothing(
    page: Client, tenant: Tenant, user: User, model: LanguageModel
) -> None:
    path = f"{CONVERSATIONS}/{spoken_in(tenant, user, model).id.hex}"
    assert (
        send(page, "PATCH", path, {"title": "  Points\n and  switches "}).json()["title"]
        == "Points and switches"
    )
    assert send(page, "PATCH", path, {"title": "  "}).json()["title"] == "Points and switches"
    assert len(send(page, "PATCH", path, {"title": "x" * 500}).json()["title"]) == 120
    refused(send(page, "PATCH", path, {"title": "x" * 1001}), 400, "invalid_value", "title")
    refused(send(page, "PATCH", path, {}), 400, "missing_required_parameter", "title")


def test_a_deleted_conversation_is_gone_audited_without_its_words_and_its_answer_is_cancelled(
    page: Client, tenant: Tenant, user: User, model: LanguageModel
) -> None:
    conversation = spoken_in(tenant, user, model, title="Secret plans")
    path = f"{CONVERSATIONS}/{conversation.id.hex}"
    assert page.delete(path).status_code == 204
    refused(page.get(path), 404, "conversation_not_found")
    with every_tenant("the test looks"):
        generation = Generation.objects.get()
    assert (generation.state, generation.cancel_reason) == ("cancelled", "client_requested")
    event = AuditEvent.objects.get(action="conversation.delete")
    assert (event.actor_id, event.tenant_id, event.before["messages"]) == (str(user.id), tenant.id, 2)
    assert "Secret" not in json.dumps([event.object_name, event.before, event.after])


def test_a_store_that_cannot_be_reached_is_503_and_says_when_to_come_back(
    page: Client, tenant: Tenant, user: User, model: LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: Any) -> None:
        raise redis.ConnectionError("Error 111 connecting to 10.1.2.3:6379")

    monkeypatch.setattr(cancellation, "cancel", unreachable)
    answer = page.delete(f"{CONVERSATIONS}/{spoken_in(tenant, user, model).id.hex}")
    refused(answer, 503, "service_unavailable")
    assert int(answer["Retry-After"]) >= 1
    assert b"10.1.2.3" not in answer.content
