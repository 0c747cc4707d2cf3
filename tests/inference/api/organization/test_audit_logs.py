"""The audit over the API: whose it is to read, what its entries say, and what they are found by."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
import time_machine
from asgiref.sync import sync_to_async
from django.db import transaction
from pytest_django import DjangoAssertNumQueries

from accounts import audit, keys
from accounts.audit import batches
from accounts.audit.reading import ERASED
from accounts.models import ApiKey, AuditEvent, AuditPersonalValue, Tenant, User
from accounts.principal import Actor
from accounts.tenancy import every_tenant
from inference.api.organization.audit_logs import list_audit_logs
from tests.factories import ACTOR, ApiKeyFactory, MembershipFactory, TenantFactory, UserFactory
from tests.inference.api.asgi_client import AsgiClient
from tests.inference.api.organization.asking import PROJECTS, call_of, every_page, project

pytestmark = pytest.mark.django_db(transaction=True)

LOGS = "/v1/organization/audit_logs"
SYSTEM = Actor.system("a task")
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)

Record = Callable[..., AuditEvent]


def record(
    action: str = "thing.change",
    *,
    actor: Actor = SYSTEM,
    kind: str = "thing",
    id_: str = "1",
    name: str = "",
    before: dict[str, Any] | None = None,
    after: dict[str, Any] | None = None,
    tenant: Tenant | None = None,
) -> AuditEvent:
    with transaction.atomic():
        return audit.record(
            actor,
            action,
            audit.ObjectRef(kind=kind, id=id_, name=name),
            before,
            after,
            tenant_id=tenant.id if tenant else None,
        )


recorded = sync_to_async(record)


def person(user: User, **more: str) -> Actor:
    return Actor(kind="user", id=str(user.id), name=user.username, **more)


def acting_key(key: ApiKey, **more: str) -> Actor:
    return Actor(kind="api_key", id=str(key.id), name=key.name, **more)


@pytest.fixture
def auditor(valkey: Any, transactional_db: None) -> AsgiClient:
    """With a key that reads the audit, of a tenant of its own."""
    return AsgiClient(
        ApiKeyFactory(tenant=TenantFactory(name="Auditors", slug="auditors"), scopes=["audit"]).raw
    )


async def entries(client: AsgiClient, query: str = "") -> list[dict[str, Any]]:
    answer = await client.get(f"{LOGS}?limit=100{query}")
    assert answer.status == 200, answer.body
    found: list[dict[str, Any]] = answer.json()["data"]
    return found


async def sequences(client: AsgiClient, query: str = "") -> list[int]:
    return [entry["sequence"] for entry in await entries(client, query)]


# What an entry says.


async def test_what_a_key_did_is_told_with_the_key_its_application_and_the_request(
    operator: AsgiClient,
) -> None:
    answer = await operator.post(PROJECTS, {"name": "New"})
    made = answer.json()

    @sync_to_async
    def key_and_event() -> tuple[ApiKey, AuditEvent]:
        with every_tenant("the test looks at its key"):
            key: ApiKey = ApiKey.objects.get(name="the operator's")
        return key, AuditEvent.objects.get(action="tenant.create")

    key, event = await key_and_event()
    [entry] = await entries(operator, "&event_types[]=project.created")
    assert entry == {
        "id": f"audit_log-{event.sequence}",
        "type": "project.created",
        "effective_at": int(event.at.timestamp()),
        "project": {"id": made["id"], "name": "New"},
        "actor": {
            "type": "api_key",
            "session": None,
            "api_key": {
                "id": f"key_{key.id.hex}",
                "type": "service_account",
                "service_account": {"id": f"svc_acct_{key.id.hex}"},
                "user": None,
                "ip_address": "127.0.0.1",
            },
            "kind": "api_key",
            "name": "the operator's",
        },
        "action": "tenant.create",
        "request_id": answer.headers["x-request-id"],
        "sequence": event.sequence,
        "hash": event.hash,
        "project.created": {
            "id": made["id"],
            "data": {"name": "New", "title": "New"},
            "object": {"kind": "tenant", "id": made["id"], "name": "New"},
            "before": None,
            "after": {
                "name": "New",
                "slug": "new",
                "suffix_pool": False,
                "time_zone": "UTC",
                "closed_at": None,
            },
        },
    }


async def test_what_openais_log_has_no_type_for_keeps_our_name_and_says_what_was_and_is(
    operator: AsgiClient,
) -> None:
    event = await recorded(
        "price.add", kind="price", id_="7", name="small", before={"a": 1}, after={"a": 2, "secret": "x"}
    )
    [entry] = await entries(operator)
    assert (entry["type"], entry["action"], entry["project"]) == ("price.add", "price.add", None)
    assert entry["price.add"] == {
        "object": {"kind": "price", "id": "7", "name": "small"},
        "before": {"a": 1},
        "after": {"a": 2, "secret": "***"},
    }
    # A part of the system is neither of the kinds that OpenAI's log knows.
    assert entry["actor"] == {
        "type": None,
        "session": None,
        "api_key": None,
        "kind": "system",
        "name": "a task",
    }
    assert (entry["request_id"], entry["hash"]) == (None, event.hash)


async def test_what_a_person_did_is_told_with_their_session_and_address(operator: AsgiClient) -> None:
    user = await sync_to_async(UserFactory)(username="ada", email="ada@example.com")
    actor = person(user, address="192.0.2.9", session="0123456789abcdef", request_id="req_1")
    await recorded(actor=actor)
    stranger = Actor(kind="anonymous", id="", name="not signed in", address="192.0.2.8")
    await recorded("user.log_in_failed", actor=stranger, kind="user", id_="")
    failed, entry = await entries(operator)
    assert (entry["actor"], entry["request_id"]) == (
        {
            "type": "session",
            "session": {
                "user": {"id": f"user_{user.id.hex}", "email": "ada@example.com"},
                "ip_address": "192.0.2.9",
                "fingerprint": "0123456789abcdef",
            },
            "api_key": None,
            "kind": "user",
            "name": "ada",
        },
        "req_1",
    )
    assert failed["actor"]["session"] == {"user": None, "ip_address": "192.0.2.8", "fingerprint": None}
    assert failed["login.failed"]["object"] == {"kind": "user", "id": None, "name": None}


async def test_what_was_erased_is_null_and_the_rest_stays(operator: AsgiClient) -> None:
    user = await sync_to_async(UserFactory)(username="ada")
    fields = {"username": "ada", "email": "ada@example.com", "is_active": True}
    await recorded(
        "user.create",
        actor=person(user, address="192.0.2.9"),
        kind="user",
        id_=str(user.id),
        name="ada",
        after=fields,
    )
    [before] = await entries(operator)
    assert before["user.added"]["after"] == fields
    assert before["user.added"]["object"]["name"] == "ada"
    await sync_to_async(AuditPersonalValue.objects.filter(person_id=user.id).delete)()
    answer = await operator.get(LOGS)
    [after] = answer.json()["data"]
    assert after["user.added"]["after"] == {"username": None, "email": None, "is_active": True}
    assert (after["user.added"]["object"]["name"], after["actor"]["name"]) == (None, None)
    assert after["actor"]["session"]["ip_address"] is None
    assert after["hash"] == before["hash"]
    assert ERASED not in answer.body.decode()


async def test_a_rotated_keys_deeds_are_the_same_applications(operator: AsgiClient, tenant: Tenant) -> None:
    @sync_to_async
    def rotated() -> tuple[ApiKey, ApiKey]:
        first = ApiKeyFactory(tenant=tenant)
        return first, keys.rotate(key=first, actor=ACTOR).key

    first, second = await rotated()
    await recorded(actor=acting_key(second))
    [entry, *_] = await entries(operator)
    assert entry["actor"]["api_key"]["id"] == f"key_{second.id.hex}"
    assert entry["actor"]["api_key"]["service_account"] == {"id": f"svc_acct_{first.id.hex}"}
    by_account = await sequences(operator, f"&actor_ids[]=svc_acct_{first.id.hex}")
    assert by_account == [entry["sequence"]]
    done_to = await entries(operator, f"&resource_ids[]=svc_acct_{first.id.hex}")
    assert {one["action"] for one in done_to} == {"api_key.rotate", "api_key.create"}


# Who reads what.


async def test_operators_and_auditors_read_everything_and_an_admin_what_was_done_in_its_project(
    admin: AsgiClient, operator: AsgiClient, auditor: AsgiClient, tenant: Tenant, other: Tenant
) -> None:
    own = await recorded(tenant=tenant)
    foreign = await recorded(tenant=other)
    nobodys = await recorded("user.log_in", kind="user", id_="")
    everything = [nobodys.sequence, foreign.sequence, own.sequence]
    assert await sequences(operator) == everything
    assert await sequences(auditor) == everything
    assert await sequences(admin) == [own.sequence]
    assert await sequences(admin, f"&project_ids[]=proj_{tenant.id.hex}") == [own.sequence]
    assert await sequences(auditor, f"&project_ids[]=proj_{other.id.hex}") == [foreign.sequence]
    both = f"&project_ids[]=proj_{other.id.hex}&project_ids[]=proj_{tenant.id.hex}"
    assert await sequences(operator, both) == [foreign.sequence, own.sequence]


async def test_another_tenants_project_is_not_there_for_an_admin(admin: AsgiClient, other: Tenant) -> None:
    told = set()
    for project_id in (f"proj_{other.id.hex}", f"proj_{uuid4().hex}", "x"):
        answer = await admin.get(f"{LOGS}?project_ids[]={project_id}")
        assert (answer.status, answer.error["code"]) == (404, "project_not_found")
        told.add(answer.body)
    assert len(told) == 1


async def test_no_filter_shows_an_admin_anything_of_another_tenant(
    admin: AsgiClient, tenant: Tenant, other: Tenant
) -> None:
    @sync_to_async
    def foreign() -> tuple[User, ApiKey, AuditEvent]:
        user, key = UserFactory(email="eve@example.com"), ApiKeyFactory(tenant=other)
        record("thing.one", actor=person(user), tenant=other, id_="77")
        return user, key, record("thing.two", actor=acting_key(key), tenant=other, id_="77")

    user, key, event = await foreign()
    for query in (
        "event_types[]=thing.one",
        "event_types[]=thing.two",
        f"actor_ids[]=user_{user.id.hex}",
        f"actor_ids[]=key_{key.id.hex}",
        f"actor_ids[]=svc_acct_{key.id.hex}",
        "actor_emails[]=eve@example.com",
        "resource_ids[]=77",
        f"resource_ids[]=proj_{other.id.hex}",
        f"before=audit_log-{event.sequence - 2}",
        f"after=audit_log-{event.sequence + 1}",
        "effective_at[gte]=0",
    ):
        assert await entries(admin, f"&{query}") == [], query


async def test_a_tenants_admin_is_told_of_people_and_keys_from_outside_what_they_did_and_no_more_than_an_id(
    admin: AsgiClient, operator: AsgiClient, tenant: Tenant
) -> None:
    @sync_to_async
    def done() -> tuple[User, User]:
        member = MembershipFactory(tenant=tenant, user__email="member@example.com").user
        outsider = UserFactory(email="operator@example.com")
        own, foreign = ApiKeyFactory(tenant=tenant), ApiKeyFactory()
        for actor in (
            person(member, address="192.0.2.1"),
            person(outsider, address="192.0.2.2"),
            acting_key(own, address="192.0.2.3"),
            acting_key(foreign, address="192.0.2.4"),
            Actor.system("manage.py key create", account="jane.doe"),
        ):
            record(actor=actor, tenant=tenant)
        return member, outsider

    member, outsider = await done()
    system, foreign_key, own_key, stranger, colleague = [
        entry["actor"] for entry in await entries(admin, "&event_types[]=thing.change")
    ]
    assert colleague["session"]["user"] == {"id": f"user_{member.id.hex}", "email": "member@example.com"}
    assert (colleague["name"], colleague["session"]["ip_address"]) == (member.username, "192.0.2.1")
    assert stranger["session"]["user"] == {"id": f"user_{outsider.id.hex}", "email": None}
    assert (stranger["name"], stranger["session"]["ip_address"]) == (None, None)
    assert own_key["api_key"]["ip_address"] == "192.0.2.3"
    assert own_key["api_key"]["service_account"] is not None
    assert (foreign_key["name"], foreign_key["api_key"]["ip_address"]) == (None, None)
    assert foreign_key["api_key"]["service_account"] is None
    assert (system["kind"], system["name"]) == ("system", None)
    assert len(await entries(admin, "&actor_emails[]=member@example.com")) == 1
    assert await entries(admin, "&actor_emails[]=operator@example.com") == []
    assert len(await entries(operator, "&actor_emails[]=operator@example.com")) == 1
    names = [entry["actor"]["name"] for entry in await entries(operator, "&event_types[]=thing.change")]
    assert None not in names
    assert "manage.py key create (jane.doe)" in names


async def test_a_person_who_left_the_tenant_is_named_still(admin: AsgiClient, tenant: Tenant) -> None:
    left = await sync_to_async(MembershipFactory)(tenant=tenant, ended_at=NOON)
    await recorded(actor=person(left.user), tenant=tenant)
    [entry] = await entries(admin)
    assert entry["actor"]["name"] == left.user.username


# Which page.


async def test_pages_follow_each_other_in_both_directions_while_events_are_added(
    operator: AsgiClient,
) -> None:
    made = [(await recorded()).sequence for _ in range(7)][::-1]
    ids = [f"audit_log-{sequence}" for sequence in made]
    assert [entry["id"] for entry in await every_page(operator, LOGS, limit=3)] == ids

    first = (await operator.get(f"{LOGS}?limit=3")).json()
    assert (first["first_id"], first["last_id"], first["has_more"]) == (ids[0], ids[2], True)
    newer = (await recorded()).sequence
    second = (await operator.get(f"{LOGS}?limit=3&after={ids[2]}")).json()
    assert [entry["id"] for entry in second["data"]] == ids[3:6]
    back = (await operator.get(f"{LOGS}?limit=2&before={ids[3]}")).json()
    assert ([entry["id"] for entry in back["data"]], back["has_more"]) == (ids[1:3], True)
    newest = (await operator.get(f"{LOGS}?limit=2&before={back['first_id']}")).json()
    assert [entry["sequence"] for entry in newest["data"]] == [newer, made[0]]
    assert newest["has_more"] is False
    between = (await operator.get(f"{LOGS}?after={ids[1]}&before={ids[5]}")).json()
    assert [entry["id"] for entry in between["data"]] == ids[2:5]


async def test_an_empty_log_is_an_empty_list(admin: AsgiClient) -> None:
    assert (await admin.get(LOGS)).json() == {
        "object": "list",
        "data": [],
        "first_id": None,
        "last_id": None,
        "has_more": False,
    }


# By what they are found.


async def test_entries_are_found_by_the_second_that_they_tell(operator: AsgiClient) -> None:
    @sync_to_async
    def at(time: datetime) -> int:
        with time_machine.travel(time, tick=False):
            return record().sequence

    early = await at(NOON)
    middle = await at(NOON + timedelta(seconds=1.7))
    late = await at(NOON + timedelta(seconds=2))
    second = int(NOON.timestamp()) + 1
    for query, expected in (
        (f"effective_at[gt]={second}", [late]),
        (f"effective_at[gte]={second}", [late, middle]),
        (f"effective_at[lt]={second}", [early]),
        (f"effective_at[lte]={second}", [middle, early]),
        (f"effective_at[gt]={second - 1}&effective_at[lt]={second + 1}", [middle]),
        (f"effective_at%5Bgte%5D={second}&effective_at%5Blte%5D={second}", [middle]),
    ):
        assert await sequences(operator, f"&{query}") == expected, query


async def test_entries_are_found_by_openais_types_and_by_our_actions(operator: AsgiClient) -> None:
    renamed = (await recorded("tenant.rename", kind="tenant", id_=str(uuid4()))).sequence
    zoned = (await recorded("tenant.set_time_zone", kind="tenant", id_=str(uuid4()))).sequence
    priced = (await recorded("price.add")).sequence
    for query, expected in (
        ("event_types[]=project.updated", [zoned, renamed]),
        ("event_types[]=tenant.rename", [renamed]),
        ("event_types[]=price.add&event_types[]=tenant.rename", [priced, renamed]),
        ("event_types=price.add", [priced]),
        # There is no such thing here, so it never happened.
        ("event_types[]=certificate.created", []),
    ):
        assert await sequences(operator, f"&{query}") == expected, query


async def test_batches_of_assignments_are_told_only_where_they_are_asked_for(operator: AsgiClient) -> None:
    sealed = await recorded(batches.ACTION, kind="assignment_batch", id_="0" * 64, after={"count": 3})
    other = await recorded()
    assert await sequences(operator) == [other.sequence]
    [entry] = await entries(operator, f"&event_types[]={batches.ACTION}")
    assert entry["sequence"] == sealed.sequence
    assert entry[batches.ACTION]["after"] == {"count": 3}
    assert len(await entries(operator, f"&event_types[]={batches.ACTION}&event_types[]=thing.change")) == 2


async def test_entries_are_found_by_who_did_it(operator: AsgiClient, tenant: Tenant) -> None:
    @sync_to_async
    def done() -> tuple[User, ApiKey, int, int]:
        user, key = UserFactory(email="ada@example.com"), ApiKeyFactory(tenant=tenant)
        UserFactory(email="")
        record()
        return user, key, record(actor=person(user)).sequence, record(actor=acting_key(key)).sequence

    user, key, by_user, by_key = await done()
    for query, expected in (
        (f"actor_ids[]=user_{user.id.hex}", [by_user]),
        (f"actor_ids[]=key_{key.id.hex}", [by_key]),
        (f"actor_ids[]=svc_acct_{key.id.hex}&actor_ids[]=user_{user.id.hex}", [by_key, by_user]),
        (f"actor_ids[]=user_{uuid4().hex}", []),
        # The digits of a key are nobody's as a user.
        (f"actor_ids[]=user_{key.id.hex}", []),
        ("actor_emails[]=ADA@example.com", [by_user]),
        ("actor_emails[]=", []),
        (f"actor_emails[]=ada@example.com&actor_ids[]=key_{key.id.hex}", []),
    ):
        assert await sequences(operator, f"&{query}") == expected, query


async def test_entries_are_found_by_what_it_was_done_to(operator: AsgiClient, tenant: Tenant) -> None:
    @sync_to_async
    def done() -> tuple[ApiKey, dict[str, int]]:
        key = ApiKeyFactory(tenant=tenant)
        return key, {
            "tenant": record("tenant.rename", kind="tenant", id_=str(tenant.id)).sequence,
            "key": record("api_key.change", kind="api_key", id_=str(key.id)).sequence,
            "right": record(
                "entitlement.change", kind="entitlement", id_="5", after={"lane_id": "low"}
            ).sequence,
            "lane": record("lane.describe", kind="lane", id_="low").sequence,
        }

    key, made = await done()
    for query, expected in (
        (f"proj_{tenant.id.hex}", "tenant"),
        (f"key_{key.id.hex}", "key"),
        (f"svc_acct_{key.id.hex}", "key"),
        ("rl-low", "right"),
        ("5", "right"),
        ("low", "lane"),
    ):
        assert await sequences(operator, f"&resource_ids[]={query}") == [made[expected]], query
    assert await sequences(operator, "&resource_ids[]=rl-high") == []
    assert await sequences(operator, "&resource_ids[]=low&resource_ids[]=5") == [made["lane"], made["right"]]


@pytest.mark.parametrize(
    ("query", "code", "param"),
    [
        ("limit=0", "invalid_value", "limit"),
        ("limit=101", "invalid_value", "limit"),
        ("after=1", "invalid_value", "after"),
        ("before=audit_log-", "invalid_value", "before"),
        ("after=audit_log-x", "invalid_value", "after"),
        (f"after=audit_log-{'9' * 19}", "invalid_value", "after"),
        ("after=audit_log-%C2%B2", "invalid_value", "after"),
        ("effective_at[gt]=noon", "invalid_value", "effective_at[gt]"),
        ("effective_at[gt]=-1", "invalid_value", "effective_at[gt]"),
        (f"effective_at[lte]={10**17}", "invalid_value", "effective_at[lte]"),
        ("effective_at[gt]=1&effective_at[gt]=2", "invalid_value", "effective_at[gt]"),
        ("effective_at[eq]=1", "unsupported_parameter", "effective_at[eq]"),
        ("effective_at=1", "unsupported_parameter", "effective_at"),
        ("effective_at_gt=1", "unsupported_parameter", "effective_at_gt"),
        ("event_types[]=Created", "invalid_value", "event_types[0]"),
        ("event_types[]=project.created&event_types[]=%27%20OR%201", "invalid_value", "event_types[1]"),
        ("actor_ids[]=ada", "invalid_value", "actor_ids[0]"),
        (f"actor_ids[]=proj_{'0' * 32}", "invalid_value", "actor_ids[0]"),
        ("&".join(["resource_ids[]=a"] * 101), "invalid_value", "resource_ids"),
        ("tenant_only=true", "unsupported_parameter", "tenant_only"),
        ("order=asc", "unsupported_parameter", "order"),
    ],
)
async def test_what_cannot_be_asked_is_refused_by_name(
    admin: AsgiClient, query: str, code: str, param: str
) -> None:
    answer = await admin.get(f"{LOGS}?{query}")
    assert (answer.status, answer.error["code"], answer.error["param"]) == (400, code, param)


def test_a_page_asks_as_much_of_the_database_whatever_its_length(
    admin: AsgiClient,
    operator: AsgiClient,
    tenant: Tenant,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    for _ in range(5):
        member = MembershipFactory(tenant=tenant, user__email="x@example.com").user
        record(actor=person(member, address="192.0.2.1"), tenant=tenant)
        record(actor=acting_key(ApiKeyFactory(tenant=tenant)), tenant=tenant)
    # The events, their personal values, keys' applications, projects, people; for an admin also its members.
    for client, most in ((operator, 5), (admin, 6)):
        assert client.key
        for limit in (1, 100):
            call = call_of(client.key, f"{LOGS}?limit={limit}")
            with django_assert_max_num_queries(most):
                list_audit_logs.function(call)


async def test_reading_the_audit_records_nothing(admin: AsgiClient, tenant: Tenant) -> None:
    assert (await admin.get(LOGS)).status == 200
    assert (await admin.get(project(tenant))).status == 200
    assert await AuditEvent.objects.acount() == 0
