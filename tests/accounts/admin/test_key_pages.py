from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
import time_machine
from django.contrib.sessions.models import Session
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.audit.reading import disclose
from accounts.authentication import InvalidKey, authenticate_key
from accounts.formatting import exactly
from accounts.models import ApiKey, AuditEvent, Lane, User
from accounts.tenancy import every_tenant
from tests.factories import ApiKeyFactory, OperatorFactory, TenantFactory
from tests.fixtures.admin import filled, save
from tests.fixtures.stored_text import stored_text

_KEY = re.compile(r"sb_[0-9A-Za-z]{12}_[0-9A-Za-z]{49}")


def _url(name: str, *arguments: object) -> str:
    return reverse(f"admin:accounts_apikey_{name}", args=arguments)


def _fields(tenant: Any, **changes: Any) -> dict[str, Any]:
    return {
        "tenant": tenant.id,
        "name": "app",
        "scopes": ["inference", "read"],
        "default_lane": "",
        **changes,
    }


def test_a_new_key_is_shown_once_and_kept_nowhere(as_operator: Client, operator: User, valkey: Any) -> None:
    tenant = TenantFactory(name="Rail")
    answer = save(as_operator, _url("add"), _fields(tenant, default_lane="low"))
    assert answer.status_code == 200
    assert "no-store" in answer["Cache-Control"]
    [raw] = set(_KEY.findall(answer.content.decode()))
    principal = authenticate_key(raw)
    assert (principal.tenant_id, principal.default_lane) == (tenant.id, "low")

    assert raw not in answer.request["PATH_INFO"] + answer.request["QUERY_STRING"]
    assert not any(raw in str(value) for value in answer.headers.values())
    assert not any(raw in morsel.value for morsel in as_operator.cookies.values())
    assert raw not in stored_text()
    assert raw not in str([session.get_decoded() for session in Session.objects.all()])
    assert all(raw.encode() not in (valkey.dump(name) or b"") for name in valkey.scan_iter())
    with every_tenant("test"):
        key = ApiKey.objects.get()
    for url in (_url("changelist"), _url("change", key.pk), _url("history", key.pk)):
        page = as_operator.get(url).content.decode()
        assert raw not in page
        assert not _KEY.search(page)

    event = AuditEvent.objects.get()
    assert (event.action, event.actor_id, disclose(event).actor_name) == (
        "api_key.create",
        str(operator.id),
        "operator",
    )
    assert key.created_by == operator


def test_reloading_the_page_that_shows_a_key_makes_no_second_one_and_says_so(as_operator: Client) -> None:
    sent = filled(as_operator, _url("add"), _fields(TenantFactory()))
    assert _KEY.search(as_operator.post(_url("add"), sent).content.decode())
    again = as_operator.post(_url("add"), sent).content.decode()
    assert "This key was made already" in again
    assert not _KEY.search(again)
    with every_tenant("test"):
        assert ApiKey.objects.count() == 1
    assert AuditEvent.objects.count() == 1


def test_a_form_without_a_ticket_makes_no_key_and_can_be_sent_as_it_comes_back(as_operator: Client) -> None:
    values = _fields(TenantFactory())
    page = as_operator.post(_url("add"), values)
    assert "nothing was made" in page.content.decode()
    with every_tenant("test"):
        assert not ApiKey.objects.exists()
    assert _KEY.search(
        as_operator.post(_url("add"), {**values, "ticket": page.context["ticket"]}).content.decode()
    )


def test_a_ticket_is_good_for_its_own_person_and_page_only(as_operator: Client) -> None:
    values = _fields(TenantFactory())
    key = ApiKeyFactory()
    of_rotation = filled(as_operator, _url("rotate", key.pk), values)
    other = Client()
    other.force_login(OperatorFactory())
    for sent in (of_rotation, filled(other, _url("add"), values)):
        as_operator.post(_url("add"), sent)
    with every_tenant("test"):
        assert ApiKey.objects.count() == 1


def test_a_form_that_was_refused_can_be_sent_again_once_it_is_right(as_operator: Client) -> None:
    sent = filled(as_operator, _url("add"), _fields(TenantFactory(), name="sb_0123456789ab_" + "x" * 49))
    assert "contains an API key" in as_operator.post(_url("add"), sent).content.decode()
    assert _KEY.search(as_operator.post(_url("add"), {**sent, "name": "app"}).content.decode())


def test_sending_a_rotation_again_changes_nothing(as_operator: Client) -> None:
    key: Any = ApiKeyFactory()
    sent = filled(as_operator, _url("rotate", key.pk), {"overlap": 2})
    [raw] = set(_KEY.findall(as_operator.post(_url("rotate", key.pk), sent).content.decode()))
    again = as_operator.post(_url("rotate", key.pk), sent).content.decode()
    assert "The successor was made already" in again
    assert authenticate_key(raw)
    with every_tenant("test"):
        assert ApiKey.objects.count() == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"name": ""}, "This field is required"),
        ({"scopes": []}, "This field is required"),
        ({"expires_at_0": "2020-01-01", "expires_at_1": "00:00:00"}, "cannot expire in the past"),
        ({"name": "sb_0123456789ab_" + "x" * 49}, "contains an API key"),
    ],
)
def test_a_mistake_is_shown_at_its_field_and_makes_no_key(
    as_operator: Client, changes: dict[str, Any], said: str
) -> None:
    answer = save(as_operator, _url("add"), _fields(TenantFactory(), **changes))
    assert answer.status_code == 200
    assert said in answer.content.decode()
    with every_tenant("test"):
        assert not ApiKey.objects.exists()


def test_rotating_asks_first_and_shows_the_successor_once(as_operator: Client) -> None:
    key: Any = ApiKeyFactory()
    question = as_operator.get(_url("rotate", key.pk)).content.decode()
    assert "Overlap, in hours" in question
    with every_tenant("test"):
        assert ApiKey.objects.count() == 1
    answer = save(as_operator, _url("rotate", key.pk), {"overlap": 2})
    [raw] = set(_KEY.findall(answer.content.decode()))
    assert authenticate_key(raw).tenant_id == key.tenant_id
    assert authenticate_key(key.raw)
    with every_tenant("test"):
        end = ApiKey.objects.get(id=key.id).expires_at
    assert end is not None
    assert abs(end - timezone.now() - timedelta(hours=2)) < timedelta(minutes=5)


def test_an_impossible_overlap_is_refused_at_its_field(as_operator: Client) -> None:
    key = ApiKeyFactory()
    answer = save(as_operator, _url("rotate", key.pk), {"overlap": -1})
    assert "greater than or equal to 0" in answer.content.decode()
    with every_tenant("test"):
        assert ApiKey.objects.count() == 1


def test_a_verb_s_refusal_is_shown_and_nothing_is_done(as_operator: Client) -> None:
    key: Any = ApiKeyFactory()
    save(as_operator, _url("rotate", key.pk), {"overlap": 2})
    with every_tenant("test"):
        ApiKey.objects.filter(rotated_from=key).update(last_used_at=timezone.now())
    answer = save(as_operator, _url("rotate", key.pk), {"overlap": 2})
    assert "was rotated already" in answer.content.decode()


def test_a6_revoking_asks_first_then_refuses_the_key_at_once(as_operator: Client) -> None:
    key: Any = ApiKeyFactory()
    assert as_operator.get(_url("revoke", key.pk)).status_code == 200
    assert authenticate_key(key.raw)
    answer = as_operator.post(_url("revoke", key.pk), follow=True)
    assert "is revoked" in answer.content.decode()
    with pytest.raises(InvalidKey):
        authenticate_key(key.raw)
    assert AuditEvent.objects.get().action == "api_key.revoke"


def test_a_rotated_key_says_until_when_it_works_and_what_replaces_it(as_operator: Client) -> None:
    key: Any = ApiKeyFactory()
    save(as_operator, _url("rotate", key.pk), {"overlap": 2})
    with every_tenant("test"):
        key.refresh_from_db()
        successor = key.rotated_to.get()
    until = f"Works until {exactly(key.expires_at)}"
    assert until in as_operator.get(_url("changelist")).content.decode()
    page = as_operator.get(_url("change", key.pk)).content.decode()
    assert until in page
    assert f'href="{_url("change", successor.pk)}"' in page
    assert (
        f'href="{_url("change", key.pk)}"' in as_operator.get(_url("change", successor.pk)).content.decode()
    )


def test_revoking_a_successor_warns_that_the_old_key_ends_all_the_same(as_operator: Client) -> None:
    key: Any = ApiKeyFactory()
    assert "ends all the same" not in as_operator.get(_url("revoke", key.pk)).content.decode()
    save(as_operator, _url("rotate", key.pk), {"overlap": 2})
    with every_tenant("test"):
        key.refresh_from_db()
        successor = key.rotated_to.get()
    question = as_operator.get(_url("revoke", successor.pk)).content.decode()
    assert f"sb_{key.prefix}…, ends all the same: it works until {exactly(key.expires_at)}" in question


def test_operators_are_offered_every_scope_and_none_is_ticked_beyond_the_tenant(as_operator: Client) -> None:
    field = as_operator.get(_url("add")).context["adminform"].form.fields["scopes"]
    assert [value for value, _ in field.choices] == ["inference", "read", "admin", "audit", "operator"]
    assert field.initial == ["inference", "read"]


def test_the_same_words_stand_for_a_key_s_lane_and_scopes_wherever_they_are_shown(
    as_operator: Client,
) -> None:
    key: Any = ApiKeyFactory()
    revoked: Any = ApiKeyFactory(revoked_at=timezone.now())
    tenant = reverse("admin:accounts_tenant_change", args=[key.tenant_id])
    for url in (_url("add"), _url("change", key.pk), _url("change", revoked.pk), _url("changelist"), tenant):
        assert "none (normal)" in as_operator.get(url).content.decode(), url
    page = as_operator.get(_url("change", revoked.pk)).content.decode()
    assert "Generate: chat, completions" in page
    assert "&quot;inference&quot;" not in page


def test_what_a_key_may_do_is_changed_through_its_verb(as_operator: Client) -> None:
    key: Any = ApiKeyFactory()
    values = {"name": "renamed", "scopes": ["read"], "default_lane": "high"}
    answer = as_operator.post(_url("change", key.pk), values)
    assert answer.status_code == 302
    principal = authenticate_key(key.raw)
    assert (principal.name, principal.scopes, principal.default_lane) == ("renamed", {"read"}, "high")
    event = AuditEvent.objects.get()
    assert event.action == "api_key.change"
    history = as_operator.get(_url("history", key.pk)).content.decode()
    assert "renamed" in history
    assert "api_key.change" in history


def test_a_key_that_no_longer_works_can_only_be_looked_at(as_operator: Client) -> None:
    key = ApiKeyFactory(revoked_at=timezone.now())
    page = as_operator.get(_url("change", key.pk)).content.decode()
    assert _url("rotate", key.pk) not in page
    assert 'name="name"' not in page
    assert as_operator.post(_url("change", key.pk), {"name": "x", "scopes": ["read"]}).status_code == 403


def test_lists_cost_as_much_for_many_keys_as_for_few(
    as_operator: Client, django_assert_max_num_queries: Any
) -> None:
    low = Lane.objects.get(name="low")
    for _ in range(3):
        ApiKeyFactory(default_lane=low)
    with django_assert_max_num_queries(12) as few:
        as_operator.get(_url("changelist"))
    for _ in range(20):
        ApiKeyFactory(default_lane=low)
    with django_assert_max_num_queries(len(few)):
        as_operator.get(_url("changelist"))


@pytest.mark.parametrize(
    ("state", "shown"), [("works", 1), ("expired", 1), ("revoked", 1), ("unused", 3), ("", 3)]
)
def test_keys_are_narrowed_by_their_state(as_operator: Client, state: str, shown: int) -> None:
    ApiKeyFactory()
    ApiKeyFactory(expires_at=timezone.now())
    ApiKeyFactory(revoked_at=timezone.now())
    page = as_operator.get(_url("changelist"), {"state": state} if state else {})
    assert len(page.context["cl"].result_list) == shown


def test_a7_a_rotation_whose_answer_was_lost_is_asked_for_again_and_both_keys_work_until_the_overlap_ends(
    as_operator: Client,
) -> None:
    key: Any = ApiKeyFactory()

    def rotated() -> str:
        answer = save(as_operator, _url("rotate", key.pk), {"overlap": 2})
        [raw] = set(_KEY.findall(answer.content.decode()))
        return raw

    lost, kept = rotated(), rotated()
    assert [authenticate_key(raw).tenant_id for raw in (key.raw, lost, kept)] == [key.tenant_id] * 3
    with every_tenant("test"):
        key.refresh_from_db()
        end = key.expires_at
    assert f"Works until {exactly(end)}" in as_operator.get(_url("change", key.pk)).content.decode()
    with time_machine.travel(end, tick=False):
        for raw in (key.raw, lost):
            with pytest.raises(InvalidKey):
                authenticate_key(raw)
        assert authenticate_key(kept)


def test_whoever_only_looks_sees_what_a_key_may_and_is_offered_no_scope(as_onlooker: Client) -> None:
    key: Any = ApiKeyFactory(scopes=["audit"])
    assert as_onlooker.get(_url("add")).status_code == 403
    page = as_onlooker.get(_url("change", key.pk)).content.decode()
    assert "Read the audit of every tenant, as an auditor does" in page
    assert 'name="scopes"' not in page
    assert as_onlooker.post(_url("change", key.pk), {"name": "x", "scopes": ["audit"]}).status_code == 403
