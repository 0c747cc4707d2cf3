"""Keys in the hands of their tenant's own owners and admins: made, narrowed, rotated, revoked; shown once."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.audit.reading import disclose
from accounts.authentication import InvalidKey, authenticate_key
from accounts.limits import Limits
from accounts.models import ApiKey, AuditEvent, Lane, Role, Tenant
from accounts.tenancy import every_tenant
from tests.accounts.site.conftest import AsRole
from tests.factories import ApiKeyFactory, EntitlementFactory
from tests.fixtures.stored_text import stored_text

_KEY = re.compile(r"sb_[0-9A-Za-z]{12}_[0-9A-Za-z]{49}")


def url(page: str = "tenant-keys", key: Any = None) -> str:
    return reverse(page, args=["rail", *([key.id] if key else [])])


def ticket(client: Client, where: str) -> dict[str, str]:
    return {"ticket": client.get(where).context["ticket"]}


def make(client: Client, **fields: Any) -> Any:
    where = url("tenant-key-new")
    return client.post(where, {"name": "app", "scopes": ["inference"], **ticket(client, where), **fields})


def rotate(client: Client, key: Any, overlap: int = 2) -> Any:
    where = url("tenant-key-rotate", key)
    return client.post(where, {"overlap": overlap, **ticket(client, where)})


def only_key() -> ApiKey:
    with every_tenant("test"):
        found: ApiKey = ApiKey.objects.select_related("allowance").get()
    return found


@pytest.fixture(autouse=True)
def _lanes(rail: Tenant) -> None:
    for name in ("normal", "low"):
        EntitlementFactory(tenant=rail, lane=Lane.objects.get(name=name))


def test_a_key_with_all_that_narrows_it_is_made_and_shown_once(
    rail: Tenant, as_owner: Client, valkey: Any
) -> None:
    answer = make(
        as_owner,
        default_lane="low",
        allowed_lanes=["low"],
        allowed_networks="192.0.2.0/24\n\n 2001:db8::1 \n192.0.2.0/24",
        tokens_per_day="1000",
        requests_per_minute="0",
        expires_at="2030-01-02T03:04:05",
    )
    assert answer.status_code == 200
    assert "no-store" in answer["Cache-Control"]
    [raw] = set(_KEY.findall(answer.content.decode()))
    key = only_key()
    assert (key.tenant_id, key.scopes, key.default_lane_id) == (rail.id, ["inference"], "low")
    assert (key.allowed_lanes, key.allowed_networks) == (["low"], ["192.0.2.0/24", "2001:db8::1"])
    assert key.allowance.limits == Limits(tokens_per_day=1000, requests_per_minute=0)
    # Said in the tenant's time, nine hours before UTC.
    assert key.expires_at == datetime(2030, 1, 1, 18, 4, 5, tzinfo=UTC)
    assert key.created_by is not None
    assert disclose(AuditEvent.objects.get()).actor_name == "the owner"

    assert raw not in stored_text()
    assert raw not in str([session.get_decoded() for session in Session.objects.all()])
    assert all(raw.encode() not in (valkey.dump(name) or b"") for name in valkey.scan_iter())
    assert not any(raw in str(value) for value in answer.headers.values())
    assert not any(raw in morsel.value for morsel in as_owner.cookies.values())
    for page in (url(), url("tenant-key", key)):
        text = as_owner.get(page).content.decode()
        assert not _KEY.search(text)
        assert f"sb_{key.prefix}" in text


def test_sending_the_form_again_makes_no_second_key(as_owner: Client) -> None:
    where = url("tenant-key-new")
    sent = {"name": "app", "scopes": ["read"], **ticket(as_owner, where)}
    assert _KEY.search(as_owner.post(where, sent).content.decode())
    again = as_owner.post(where, sent).content.decode()
    assert "This key was made already" in again
    assert not _KEY.search(again)
    assert only_key()


def test_a_form_without_a_ticket_makes_no_key_and_can_be_sent_as_it_comes_back(as_owner: Client) -> None:
    where = url("tenant-key-new")
    page = as_owner.post(where, {"name": "app", "scopes": ["read"]})
    assert "nothing was made" in page.content.decode()
    with every_tenant("test"):
        assert not ApiKey.objects.exists()
    sent = {"name": "app", "scopes": ["read"], "ticket": page.context["ticket"]}
    assert _KEY.search(as_owner.post(where, sent).content.decode())


def test_only_lanes_that_the_tenant_has_are_offered_and_taken(as_owner: Client) -> None:
    page = as_owner.get(url("tenant-key-new"))
    assert [name for name, _ in page.context["form"].fields["allowed_lanes"].choices] == ["normal", "low"]
    for fields in ({"allowed_lanes": ["high"]}, {"default_lane": "high"}):
        assert not _KEY.search(make(as_owner, **fields).content.decode())
    with every_tenant("test"):
        assert not ApiKey.objects.exists()


@pytest.mark.parametrize(
    ("role", "offered"),
    [(Role.OWNER, ["inference", "read", "admin"]), (Role.ADMIN, ["inference", "read"])],
)
def test_only_owners_let_a_key_administer_and_nobody_lets_it_operate(
    as_role: AsRole, role: Role, offered: list[str]
) -> None:
    client = as_role(role)
    page = client.get(url("tenant-key-new"))
    assert [value for value, _ in page.context["form"].fields["scopes"].choices] == offered
    for scope in ("inference", "read", "admin", "operator", "audit"):
        made = _KEY.search(make(client, scopes=[scope]).content.decode())
        assert bool(made) == (scope in offered), scope


@pytest.mark.parametrize(
    ("role", "scope"), [(Role.ADMIN, "admin"), (Role.OWNER, "operator"), (Role.OWNER, "audit")]
)
def test_a_key_beyond_one_s_own_reach_is_neither_changed_nor_rotated_but_may_be_revoked(
    rail: Tenant, as_role: AsRole, role: Role, scope: str
) -> None:
    client = as_role(role)
    key: Any = ApiKeyFactory(tenant=rail, scopes=["read", scope])
    page = client.get(url("tenant-key", key))
    assert page.context["form"] is None
    assert "may do more than you could give it" in page.content.decode()
    assert client.post(url("tenant-key", key), {"name": "x", "scopes": ["read"]}).status_code == 403
    assert client.get(url("tenant-key-rotate", key)).status_code == 403
    assert client.post(url("tenant-key-rotate", key), {"overlap": 0}).status_code == 403
    assert authenticate_key(key.raw).scopes == {"read", scope}
    client.post(url("tenant-key-revoke", key))
    with pytest.raises(InvalidKey):
        authenticate_key(key.raw)


def test_a_change_goes_through_its_verb_and_leaves_what_was_not_touched(
    rail: Tenant, as_owner: Client
) -> None:
    end = timezone.now() + timedelta(days=3, microseconds=123456)
    key: Any = ApiKeyFactory(
        tenant=rail, expires_at=end, allowed_models=["no longer offered"], allowance__tokens_per_week=70
    )
    page = as_owner.get(url("tenant-key", key))
    form = page.context["form"]
    sent = {field.html_name: field.value() for field in form if field.value() is not None}
    shown = re.search(r'name="expires_at" value="([^"]+)"', page.content.decode())
    assert shown
    sent["expires_at"] = shown[1]
    answer = as_owner.post(url("tenant-key", key), {**sent, "name": "renamed", "concurrency": "2"})
    assert answer.status_code == 302
    changed = only_key()
    assert (changed.name, changed.expires_at, changed.allowed_models) == (
        "renamed",
        end,
        ["no longer offered"],
    )
    assert changed.allowance.limits == Limits(tokens_per_week=70, concurrency=2)
    assert AuditEvent.objects.get().action == "api_key.change"
    assert "renamed is changed." in as_owner.get(answer["Location"]).content.decode()


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"name": ""}, "This field is required."),
        ({"scopes": []}, "This field is required."),
        ({"expires_at": "2020-01-01T00:00:00"}, "cannot expire in the past"),
        ({"allowed_networks": "192.0.2.1/24"}, "has bits set behind its prefix"),
        ({"name": "sb_0123456789ab_" + "x" * 49}, "contains an API key"),
        ({"tokens_per_day": "-1"}, "greater than or equal to 0"),
        ({"tokens_per_day": "9" * 30}, "less than or equal to"),
    ],
)
def test_a_mistake_is_shown_at_its_field_and_makes_no_key(
    as_owner: Client, fields: dict[str, Any], said: str
) -> None:
    answer = make(as_owner, **fields)
    page = answer.content.decode()
    assert answer.status_code == 200
    assert said in page
    assert 'role="alert"' in page
    assert next(iter(fields)) in answer.context["form"].errors
    with every_tenant("test"):
        assert not ApiKey.objects.exists()


def test_a7_a_rotated_key_works_beside_its_successor_and_a_lost_answer_is_no_lost_key(
    rail: Tenant, as_owner: Client
) -> None:
    key: Any = ApiKeyFactory(tenant=rail, allowance__tokens_per_day=50)
    [lost] = set(_KEY.findall(rotate(as_owner, key).content.decode()))
    with every_tenant("test"):
        end = ApiKey.objects.get(id=key.id).expires_at
    [kept] = set(_KEY.findall(rotate(as_owner, key, overlap=48).content.decode()))
    assert lost != kept
    for raw in (key.raw, kept):
        assert authenticate_key(raw).tenant_id == rail.id
    with every_tenant("test"):
        assert ApiKey.objects.get(id=key.id).expires_at == end
        assert {row.allowance_id for row in ApiKey.objects.all()} == {key.allowance_id}
        successor = ApiKey.objects.get(prefix=kept.split("_")[1])
    page = as_owner.get(url("tenant-key", key)).content.decode()
    assert url("tenant-key", successor) in page


def test_sending_a_rotation_again_changes_nothing(rail: Tenant, as_owner: Client) -> None:
    key: Any = ApiKeyFactory(tenant=rail)
    where = url("tenant-key-rotate", key)
    sent = {"overlap": 2, **ticket(as_owner, where)}
    assert _KEY.search(as_owner.post(where, sent).content.decode())
    assert "The successor was made already" in as_owner.post(where, sent).content.decode()
    with every_tenant("test"):
        assert ApiKey.objects.count() == 2


def test_a_verb_s_refusal_is_shown_and_nothing_is_done(rail: Tenant, as_owner: Client) -> None:
    key: Any = ApiKeyFactory(tenant=rail)
    rotate(as_owner, key)
    with every_tenant("test"):
        ApiKey.objects.filter(rotated_from=key).update(last_used_at=timezone.now())
    assert "was rotated already" in rotate(as_owner, key).content.decode()
    with every_tenant("test"):
        assert ApiKey.objects.count() == 2


def test_a6_revoking_asks_first_and_ends_the_key_at_once(rail: Tenant, as_owner: Client) -> None:
    key: Any = ApiKeyFactory(tenant=rail, name="old app")
    assert as_owner.get(url("tenant-key-revoke", key)).status_code == 200
    assert authenticate_key(key.raw)
    page = as_owner.post(url("tenant-key-revoke", key), follow=True).content.decode()
    assert "old app is revoked." in page
    assert "Keys that no longer work (1)" in page
    with pytest.raises(InvalidKey):
        authenticate_key(key.raw)


def test_a_key_that_no_longer_works_can_only_be_looked_at(rail: Tenant, as_owner: Client) -> None:
    key: Any = ApiKeyFactory(tenant=rail, revoked_at=timezone.now())
    page = as_owner.get(url("tenant-key", key))
    assert page.context["form"] is None
    assert url("tenant-key-rotate", key) not in page.content.decode()
    assert as_owner.post(url("tenant-key", key), {"name": "x", "scopes": ["read"]}).status_code == 403
    assert "Make a new key instead." in rotate(as_owner, key).content.decode()


def test_limits_of_keys_are_shown_with_their_use(rail: Tenant, as_owner: Client) -> None:
    ApiKeyFactory(tenant=rail, allowance__tokens_per_day=1000, allowed_lanes=["low"])
    page = as_owner.get(url()).content.decode()
    assert "0 of 1,000 used (0 %)" in page
    assert "every lane of the tenant" not in page


def test_the_list_costs_as_much_for_many_keys_as_for_few(
    rail: Tenant, as_owner: Client, django_assert_max_num_queries: Any
) -> None:
    def more(count: int) -> None:
        for _ in range(count):
            ApiKeyFactory(
                tenant=rail,
                default_lane=Lane.objects.get(name="low"),
                allowance__tokens_per_day=5,
                allowance__requests_per_minute=5,
            )

    more(2)
    with django_assert_max_num_queries(14) as few:
        as_owner.get(url())
    more(20)
    with django_assert_max_num_queries(len(few)):
        as_owner.get(url())
