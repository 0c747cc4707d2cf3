"""The audit's events in the admin: searched, narrowed, told apart before and after, and each in its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import time_machine
from django.db import connection, transaction
from django.test import Client
from django.urls import reverse

from accounts import audit, tenants, users
from accounts.audit import actions
from accounts.models import AuditArchive, AuditEvent, User
from accounts.principal import Actor
from tests.accounts.admin.audited import NOW, Audited, acting, audited
from tests.accounts.admin.test_audit_assignments import text
from tests.accounts.audit.own_state import settle

LIST = reverse("admin:accounts_auditevent_changelist")


@pytest.fixture
def made(_admin_pages: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    settle(monkeypatch, tmp_path)
    made = audited()
    with time_machine.travel(NOW, tick=True):
        yield made


def page_of(client: Client, event: AuditEvent | int) -> Any:
    sequence = event if isinstance(event, int) else event.sequence
    return client.get(reverse("admin:accounts_auditevent_change", args=[sequence]))


def listed(client: Client, **query: Any) -> list[str]:
    return [event.action for event in client.get(LIST, query).context["cl"].result_list]


def test_batches_of_assignments_are_hidden_unless_they_are_asked_for(
    made: Audited, as_auditor: Client
) -> None:
    assert "lane_assignments.seal" not in listed(as_auditor)
    assert listed(as_auditor, seals="shown").count("lane_assignments.seal") == 1
    assert "lane_assignments.seal" in listed(as_auditor, family="audit", seals="shown")
    assert "lane_assignments.seal" not in listed(as_auditor, family="audit")
    assert set(listed(as_auditor)) | {"lane_assignments.seal"} == set(actions.recorded())


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"q": "grace"}, {"entitlement.approve"}),
        ({"q": "198.51.100.9"}, {"entitlement.approve"}),
        ({"q": "req_grace"}, {"entitlement.approve"}),
        ({"q": "api_key.cr"}, {"api_key.create"}),
        ({"q": "departures"}, {"api_key.create"}),
        ({"q": "1"}, {"tenant.create"}),
        ({"q": "Nobody at all"}, set()),
        ({"family": "keys"}, {"api_key.create"}),
        ({"family": "tenants", "actor_kind": "user"}, {"tenant.create"}),
        ({"family": "tenants", "actor_kind": "system"}, set()),
        ({"first": "2026-11-22", "family": "keys"}, {"api_key.create"}),
        ({"first": "2026-11-23", "family": "keys"}, set()),
        ({"session": "5e55" * 4}, {"entitlement.request"}),
    ],
)
def test_events_are_searched_and_narrowed(
    made: Audited, as_auditor: Client, query: dict[str, str], found: set[str]
) -> None:
    assert set(listed(as_auditor, **query)) == found


def test_ids_find_whatever_bears_them(made: Audited, as_auditor: Client) -> None:
    assert set(listed(as_auditor, q=str(made.key.id))) == {"api_key.create"}
    assert set(listed(as_auditor, q=f"key_{made.key.id.hex}")) == {"api_key.create"}
    assert "entitlement.request" in listed(as_auditor, q=str(made.timetable.id))
    assert "entitlement.request" in listed(as_auditor, q=str(made.ada.id))
    assert "lane.set_approval" in listed(as_auditor, tenant_id="", q="high")
    assert "lane.set_approval" not in listed(as_auditor, tenant_id=made.timetable.id)


def test_a_diff_stands_side_by_side_with_names_instead_of_ids(made: Audited, as_auditor: Client) -> None:
    tenants.rename(tenant=made.timetable, name="Departures board", actor=acting(made.ada))
    renamed = AuditEvent.objects.get(action="tenant.rename")
    page = page_of(as_auditor, renamed)
    html = page.content.decode()
    assert "<del>Timetable</del>" in html
    assert "<ins>Departures board</ins>" in html
    said = text(page)
    assert "ada, user · all by them" in said
    assert "What stayed as it was" in said
    assert reverse("admin:accounts_tenant_change", args=[made.timetable.pk]) in html
    approved = text(page_of(as_auditor, AuditEvent.objects.get(action="entitlement.approve")))
    assert "Decided by empty grace" in approved
    assert "Approval requested approved" in approved
    assert "Ends at 29 Dec 2026, 12:00:00 UTC" in approved
    assert str(made.grace.id) not in approved


def test_a_page_leads_to_the_actor_s_other_events_the_object_s_the_session_s_and_the_request_s(
    made: Audited, as_auditor: Client
) -> None:
    requested = AuditEvent.objects.get(action="entitlement.request")
    page = page_of(as_auditor, requested).context["page"]
    assert set(as_auditor.get(page.by_actor).context["cl"].result_list) == set(
        AuditEvent.objects.filter(actor_id=str(made.ada.id))
    )
    assert [event.action for event in as_auditor.get(page.about_object).context["cl"].result_list] == [
        "entitlement.approve",
        "entitlement.request",
    ]
    for url in (page.in_session, page.in_request, page.object_url, page.actor_url, page.tenant_url):
        assert as_auditor.get(url).status_code == 200, url
    narrowed = text(as_auditor.get(page.by_actor))
    assert "Only events by ada." in narrowed


def test_what_was_erased_and_what_was_masked_is_said_in_its_place(made: Audited, as_auditor: Client) -> None:
    issued = users.create(username="nell", email="nell@example.com", actor=acting(made.ada))
    nell = issued.user
    users.change(
        user=nell,
        username="nell",
        email="n@example.com",
        is_staff=True,
        is_superuser=False,
        actor=acting(nell, address="203.0.113.5", request_id="req_1"),
    )
    with transaction.atomic():
        audit.record(
            acting(nell, request_id="req_2"),
            "thing.change",
            audit.ObjectRef("thing", "1"),
            {"token": "a"},
            {"n": 2},
        )
    changed = AuditEvent.objects.get(action="user.change")
    before = text(page_of(as_auditor, changed))
    assert "nell@example.com n@example.com" in before
    assert "203.0.113.5" in before
    masked = text(page_of(as_auditor, AuditEvent.objects.get(action="thing.change")))
    assert "Token (masked) empty" in masked
    users.close(user=nell, actor=acting(made.ada))
    users.erase(user=User.objects.get(pk=nell.pk), actor=acting(made.ada))
    after = text(page_of(as_auditor, changed))
    assert "(erased), user" in after
    assert "Erased with the person's data: email, username." in after
    for gone in ("nell", "n@example.com", "203.0.113.5"):
        assert gone not in after
    assert listed(as_auditor, q="nell") == []
    assert "Holds." in after


def test_events_of_the_first_format_show_their_names_from_the_row(made: Audited, as_auditor: Client) -> None:
    old = AuditEvent.objects.create(
        sequence=10_000,
        at=NOW,
        actor_kind="user",
        actor_id=str(made.ada.id),
        actor_name="ada of old",
        action="tenant.rename",
        object_kind="tenant",
        object_id="x",
        object_name="Old",
        hash="f" * 64,
        previous_hash="e" * 64,
    )
    assert "ada of old" in text(page_of(as_auditor, old))
    assert listed(as_auditor, q="ada of old") == ["tenant.rename"]


def test_an_event_s_page_looks_at_its_place_in_the_chain(
    made: Audited, as_auditor: Client, tampering: Any
) -> None:
    assert "Holds. Its hash covers what it says" in text(page_of(as_auditor, 3))
    with tampering():
        AuditEvent.objects.filter(sequence=3).update(object_name="x")
    assert "this event was changed after it was recorded" in text(page_of(as_auditor, 3))
    with tampering():
        AuditEvent.objects.filter(sequence=3).delete()
    assert "It does not follow event 3: that one was changed, or is gone." in text(page_of(as_auditor, 4))
    assert "Event 3, the one after it, is gone." in text(page_of(as_auditor, 2))


def test_an_event_that_is_not_there_is_looked_for_in_the_archives(made: Audited, as_auditor: Client) -> None:
    AuditArchive.objects.create(
        first_sequence=500,
        last_sequence=600,
        previous_hash="0" * 64,
        last_hash="0" * 64,
        assignments=0,
        file_name="audit-500-600.jsonl.gz",
        file_sha256="0" * 64,
        file_bytes=1,
        created_at=NOW,
    )
    url = reverse("admin:accounts_auditevent_change", args=[555])
    assert "it lies in the archive audit-500-600.jsonl.gz" in text(as_auditor.get(url, follow=True))
    url = reverse("admin:accounts_auditevent_change", args=[999])
    assert "Event 999 is not in the database: there is none." in text(as_auditor.get(url, follow=True))


def _record(count: int) -> None:
    with transaction.atomic():
        for n in range(count):
            audit.record(
                Actor(
                    kind="user",
                    id="00000000-0000-4000-8000-000000000001",
                    name=f"person {n}",
                    address="192.0.2.1",
                ),
                "user.change",
                audit.ObjectRef("user", "00000000-0000-4000-8000-000000000002", "somebody"),
                {"email": f"a{n}@example.com"},
                {"email": f"b{n}@example.com"},
            )


@pytest.mark.parametrize("query", [{}, {"q": "person"}])
def test_the_list_costs_as_much_for_many_events_as_for_few(
    made: Audited, as_auditor: Client, django_assert_max_num_queries: Any, query: dict[str, str]
) -> None:
    _record(2)
    with django_assert_max_num_queries(20) as few:
        as_auditor.get(LIST, query)
    _record(60)
    with django_assert_max_num_queries(len(few)) as many:
        page = as_auditor.get(LIST, query)
    assert len(page.context["cl"].result_list) == 50
    assert not any("COUNT(" in query["sql"].upper() for query in many.captured_queries)


def test_batches_in_between_are_not_read_to_find_the_others(made: Audited) -> None:
    wanted = actions.chosen(actions.recorded(), family=None, with_seals=False)
    plan = AuditEvent.objects.filter(action__in=wanted).order_by("-sequence")[:50].explain()
    if connection.vendor == "sqlite":
        assert "USING INDEX accounts_auditevent_action" in plan


def test_a_person_is_found_by_what_they_were_called_then(made: Audited, as_auditor: Client) -> None:
    User.objects.filter(pk=made.grace.pk).update(username="hopper")
    assert listed(as_auditor, q="grace") == ["entitlement.approve"]
    assert listed(as_auditor, q="hopper") == []
