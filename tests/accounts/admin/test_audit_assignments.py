"""Lane assignments in the admin: who ran in which lane, by what right, who granted it, and was the record touched."""

from __future__ import annotations

import re
import uuid
from datetime import timedelta
from html import unescape
from pathlib import Path
from typing import Any

import pytest
import time_machine
from django.test import Client
from django.urls import reverse

from accounts import entitlements
from accounts.audit import checkpoints, sealing
from accounts.limits import Limits
from accounts.models import AuditEvent, Entitlement, LaneAssignment, SealedAssignment, User
from accounts.tenancy import every_tenant
from tests.accounts.admin.audited import (
    NOW,
    TUESDAY,
    Audited,
    acting,
    audited,
    change_assignment,
    principal_of,
    run,
)
from tests.accounts.audit.own_state import settle
from tests.factories import GenerationFactory

LIST = reverse("admin:accounts_laneassignment_changelist")
TUESDAYS = {"first": "2026-11-24", "last": "2026-11-24"}


@pytest.fixture
def made(_admin_pages: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    settle(monkeypatch, tmp_path)
    made = audited()
    with time_machine.travel(NOW, tick=True):
        yield made


def text(page: Any) -> str:
    """What a person reads on a page, without its marks."""
    words = re.sub(r"<(script|style).*?</\1>", " ", page.content.decode(), flags=re.S)
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", words))).replace(" .", ".").replace(" ,", ",")


def decision(client: Client, generation_id: uuid.UUID) -> Any:
    return client.get(reverse("admin:accounts_laneassignment_change", args=[generation_id]))


def test_one_click_answers_who_ran_in_high_last_tuesday_by_what_right_and_who_granted_it(
    made: Audited, as_auditor: Client
) -> None:
    landing = as_auditor.get(reverse("admin:index"), follow=True).content.decode()
    [link] = re.findall(
        r'href="([^"]+)" aria-label="Tue 24 Nov: who ran in high on Tuesday 24 Nov 2026"', landing
    )
    page = as_auditor.get(link.replace("&amp;", "&"))
    said = text(page)
    assert "Who ran in high on Tuesday 24 Nov 2026 (UTC)" in said
    by_key, by_person = page.context["cl"].answer.uses
    assert (by_key.use.who, by_key.use.generations) == (f"sb_{made.key.prefix}…", 3)
    assert (by_person.use.who, by_person.use.generations) == ("mabel", 1)
    for words in (
        "Timetable",
        "Entitlement to high, until 29 Dec 2026, 12:00:00 UTC",
        "winter timetable",
        "ada, 22 Nov 2026, 09:30:0",
        "Approved by grace",
        "All 4 records are what was sealed: compared just now",
        "The chain has not been verified yet.",
    ):
        assert words in said, words
    granted = AuditEvent.objects.get(action="entitlement.request")
    assert reverse("admin:accounts_auditevent_change", args=[granted.sequence]) in page.content.decode()


def test_whoever_touched_a_record_is_found_out_above_the_list(
    made: Audited, as_auditor: Client, tampering: Any
) -> None:
    with tampering():
        change_assignment(made.by_key[0], given_lane="normal")
        change_assignment(made.by_key[1], tenant_name="Somebody else")
    said = text(as_auditor.get(LIST, {"given_lane": "high", **TUESDAYS}))
    assert "2 records of 3 are what was sealed" in said
    assert "1 record is not what was sealed." in said
    assert "Changed" in said
    normal = text(as_auditor.get(LIST, {"given_lane": "normal", **TUESDAYS}))
    assert "1 record of 2 are what was sealed" in normal


def test_leaves_that_were_changed_with_their_record_are_found_by_their_batch_s_root(
    made: Audited, as_auditor: Client, tampering: Any
) -> None:
    from accounts.audit.contents import assignment_leaf

    with tampering():
        change_assignment(made.by_key[0], given_lane="normal")
        with every_tenant("test"):
            row = LaneAssignment.objects.get(pk=made.by_key[0])
        SealedAssignment.objects.filter(pk=row.pk).update(hash=assignment_leaf(row))
    said = text(decision(as_auditor, row.pk))
    assert "The leaf is in its batch Its proof leads to the root" in said
    assert "leaves of this batch were changed, added or taken away" in said


def test_a_verification_is_told_with_the_answer_and_covers_it_or_not(
    made: Audited, as_auditor: Client
) -> None:
    asked = {"given_lane": "high", **TUESDAYS}
    url = f"{LIST}?given_lane=high&first=2026-11-24&last=2026-11-24"
    answer = as_auditor.post(reverse("admin:accounts_audit_verify"), {"back": url})
    assert answer["Location"] == url
    said = text(as_auditor.get(LIST, asked))
    assert "The chain holds. Last verified" in said
    assert "after the last verification" not in said
    with every_tenant("test"):
        run(principal_of(made.key), "high")
    sealing.seal(NOW)
    later = text(as_auditor.get(LIST, {"first": "2026-11-29"}))
    assert "Some of these were sealed after the last verification that held." in later


def test_an_assignment_says_why_in_sentences_and_proves_itself(made: Audited, as_auditor: Client) -> None:
    page = decision(as_auditor, made.by_key[0])
    said = text(page)
    for words in (
        "The request asked for no lane. Then the key has a default: high.",
        "The key allowed every lane that its tenant has.",
        "Timetable was entitled to high.",
        "It was given high.",
        "Tokens a day 1,000",
        "Ends 29 Dec 2026, 12:00:00 UTC",
        "entitlement.request by ada from 192.0.2.7",
        "entitlement.approve by grace from 198.51.100.9",
        "Tokens a day 100 of 1,000 used, the entitlement's",
        "The record is what was sealed",
        "It is number 1 of 5.",
        "Its hash covers what it says and the hash before it.",
        "Signed 24 Nov 2026",
    ):
        assert words in said, words
    assert [step.held for step in page.context["page"].proof.steps] == ["yes"] * 5


def test_steps_down_are_told_with_the_limit_that_was_short(made: Audited, as_auditor: Client) -> None:
    said = text(decision(as_auditor, made.stepped_down))
    for words in (
        "The request asked for the lane high.",
        "It did not fit there and stepped down. It was given normal.",
        "high : Too little was left of: tokens a day, 1,000 by its terms then.",
        "a limit of the lane was exhausted",
    ):
        assert words in said, words


def test_a_person_s_request_names_them_until_they_are_erased(made: Audited, as_auditor: Client) -> None:
    said = text(decision(as_auditor, made.by_person))
    assert "The request asked for the service tier priority, which is the lane high." in said
    assert "mabel, in the chat" in said
    User.objects.filter(pk=made.person.pk).update(is_active=False, username="erased-1", erased_at=NOW)
    for page in (
        decision(as_auditor, made.by_person),
        as_auditor.get(LIST, {"given_lane": "high", **TUESDAYS}),
    ):
        assert "(erased)" in text(page)
        assert "mabel" not in text(page)


def test_people_are_called_what_the_audit_called_them_then_and_what_they_are_called_now(
    made: Audited, as_auditor: Client
) -> None:
    with time_machine.travel(TUESDAY - timedelta(days=1), tick=True), every_tenant("test"):
        entitlements.change(entitlement=made.granted, actor=acting(made.person), reason="winter")
    event = AuditEvent.objects.order_by("-sequence")[0]
    # As by somebody who owns the database, and lets one person be taken for another.
    User.objects.filter(pk=made.person.pk).update(username="zebulon")
    for page in (
        decision(as_auditor, made.by_person),
        as_auditor.get(LIST, {"given_lane": "high", **TUESDAYS}),
        as_auditor.get(reverse("admin:accounts_auditevent_change", args=[event.sequence])),
    ):
        assert "mabel (now zebulon)" in text(page)
    made.person.username = "zebulon"
    with every_tenant("test"):
        entitlements.change(entitlement=made.granted, actor=acting(made.person), reason="spring")
    assert "mabel (now zebulon), in the chat" in text(decision(as_auditor, made.by_person)), "as it was then"
    grants = text(as_auditor.get(reverse("admin:accounts_auditevent_change", args=[event.sequence + 1])))
    assert "zebulon, user" in grants


def test_terms_are_those_of_then_and_not_those_of_now(made: Audited, as_auditor: Client) -> None:
    with every_tenant("test"):
        entitlements.change(
            entitlement=made.granted, actor=acting(made.ada), limits=Limits(tokens_per_day=50), reason="less"
        )
    said = text(decision(as_auditor, made.by_key[0]))
    assert "Tokens a day 1,000" in said
    assert "Reason winter timetable" in said
    assert "as its events say that it was then" in said


def test_an_entitlement_that_gave_nothing_then_is_objected_to(
    made: Audited, as_auditor: Client, tampering: Any
) -> None:
    with tampering():
        change_assignment(made.by_key[0], created_at=TUESDAY - timedelta(days=9))
    said = text(decision(as_auditor, made.by_key[0]))
    assert "this entitlement did not give its rights at that time" in said
    assert "the record was changed after it was sealed" in said


def test_what_is_not_sealed_yet_says_so_and_what_never_was_is_told_apart(
    made: Audited, as_auditor: Client
) -> None:
    with every_tenant("test"):
        fresh = run(principal_of(made.key), "high")
    assert "Not yet: assignments are sealed about once a second." in text(decision(as_auditor, fresh))
    with time_machine.travel(NOW + timedelta(hours=1), tick=True):
        assert "its leaf was taken away" in text(decision(as_auditor, fresh))
    assert "Not sealed yet" in text(as_auditor.get(LIST))


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"after": {"root": "0" * 64}}, "is not whole: its event or some of its leaves are gone"),
        ({"request_id": "req_x"}, "Its hash does not cover what it says: the event was changed."),
    ],
)
def test_a_changed_batch_event_breaks_the_proof_where_it_stands(
    made: Audited, as_auditor: Client, tampering: Any, columns: dict[str, Any], said: str
) -> None:
    with tampering():
        AuditEvent.objects.filter(action="lane_assignments.seal").update(**columns)
    assert said in text(decision(as_auditor, made.by_key[0]))


def test_a_changed_event_between_the_batch_and_its_checkpoint_is_named(
    made: Audited, as_auditor: Client, tampering: Any
) -> None:
    batch = AuditEvent.objects.get(action="lane_assignments.seal").sequence
    with every_tenant("test"):
        for reason in ("a", "b", "c"):
            entitlements.change(entitlement=made.granted, actor=acting(made.ada), reason=reason)
    with tampering():
        from accounts.models import AuditCheckpoint

        AuditCheckpoint.objects.all().delete()
    checkpoints.make(NOW)
    assert "Every link up to it holds, over 4 events." in text(decision(as_auditor, made.by_key[0]))
    with tampering():
        AuditEvent.objects.filter(sequence=batch + 2).update(address="192.0.2.99")
    said = text(decision(as_auditor, made.by_key[0]))
    assert f"The chain between the two is broken at event {batch + 2}." in said


def test_without_a_checkpoint_the_proof_ends_openly(
    made: Audited, as_auditor: Client, tampering: Any
) -> None:
    from accounts.models import AuditCheckpoint

    with tampering():
        AuditCheckpoint.objects.all().delete()
    page = decision(as_auditor, made.by_key[0])
    assert page.context["page"].proof.held == "not_yet"
    assert "None was made since." in text(page)


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ({"given_lane": "high"}, 4),
        ({"given_lane": "normal"}, 1),
        ({"reason": "stepped_down"}, 1),
        ({"reason": "requested"}, 1),
        (TUESDAYS, 5),
        ({"first": "2026-11-25"}, 0),
        ({"q": "mabel"}, 1),
        ({"q": "timeta"}, 5),
        ({"q": "departures"}, 4),
        ({"q": "nobody of that name"}, 0),
    ],
)
def test_the_list_is_narrowed_and_searched(
    made: Audited, as_auditor: Client, query: dict[str, str], found: int
) -> None:
    assert len(as_auditor.get(LIST, query).context["cl"].result_list) == found


def test_a_tenant_s_days_are_those_of_its_calendar_and_its_keys_are_offered(
    made: Audited, as_auditor: Client
) -> None:
    made.timetable.time_zone = "Pacific/Kiritimati"
    made.timetable.save(update_fields=["time_zone"])
    by_tenant = {"tenant_id": made.timetable.id}
    page = as_auditor.get(LIST, {**by_tenant, **TUESDAYS, "api_key_id": made.key.id})
    assert len(page.context["cl"].result_list) == 4
    assert "Pacific/Kiritimati" in text(page)
    # 09:30 on Tuesday in UTC is 23:30 there; an hour later it would be Wednesday.
    assert as_auditor.get(LIST, {**by_tenant, "first": "2026-11-25"}).context["cl"].result_list == []


def test_a_former_name_of_a_tenant_finds_its_assignments(made: Audited, as_auditor: Client) -> None:
    from accounts import tenants

    tenants.rename(tenant=made.timetable, name="Departures board", actor=acting(made.ada))
    assert len(as_auditor.get(LIST, {"q": "timetable"}).context["cl"].result_list) == 5


@pytest.mark.parametrize(
    "query", [{"first": "tomorrow"}, {"first": "2026-02-02", "last": "2026-02-01"}, {"tenant_id": "x"}]
)
def test_what_makes_no_sense_leads_back_to_the_whole_list(
    made: Audited, as_auditor: Client, query: dict[str, str]
) -> None:
    answer = as_auditor.get(LIST, query)
    assert (answer.status_code, answer["Location"]) == (302, f"{LIST}?e=1")


def test_the_list_and_its_answer_cost_as_much_for_many_rows_as_for_few(
    made: Audited, as_auditor: Client, django_assert_max_num_queries: Any
) -> None:
    asked = {"given_lane": "normal", **TUESDAYS}
    with django_assert_max_num_queries(45) as few:
        as_auditor.get(LIST, asked)
    with time_machine.travel(TUESDAY, tick=True), every_tenant("test"):
        for _ in range(12):
            run(principal_of(made.key), "normal")
        sealing.seal(TUESDAY + timedelta(minutes=1))
    with django_assert_max_num_queries(len(few)):
        page = as_auditor.get(LIST, asked)
    assert len(page.context["cl"].result_list) == 13


def test_the_generation_s_page_leads_to_its_decision_for_who_may_read_it(
    made: Audited, as_auditor: Client, as_operator: Client, as_onlooker: Client
) -> None:
    generation = GenerationFactory(id=made.by_key[0], tenant=made.timetable)
    url = reverse("admin:inference_generation_change", args=[generation.pk])
    link = reverse("admin:accounts_laneassignment_change", args=[generation.pk])
    assert link in as_auditor.get(url).content.decode()
    assert link in as_operator.get(url).content.decode()
    assert link not in as_onlooker.get(url).content.decode()


def test_a_right_that_was_deleted_is_told(made: Audited, as_auditor: Client, tampering: Any) -> None:
    with tampering():
        change_assignment(made.by_key[0], entitlement_id=uuid.uuid4())
    assert "The entitlement that gave the lane is not there any more." in text(
        decision(as_auditor, made.by_key[0])
    )
    with every_tenant("test"):
        assert Entitlement.objects.count() == 3
