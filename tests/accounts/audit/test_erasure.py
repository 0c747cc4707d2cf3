"""Erasing a person: what is about them is gone from everywhere, and what was proved is proved."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import timedelta
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.db import transaction
from django.utils import timezone

from accounts import audit, log_ins, members, personal_data, users
from accounts.audit import archives, verification
from accounts.audit.reading import ERASED, disclosable, disclose
from accounts.models import AuditEvent, AuditPersonalValue, Role, User
from accounts.principal import Actor
from accounts.refusals import ChangeRefusal, ChangeRefused
from tests.accounts.audit.chains import set_row
from tests.accounts.audit.exported import exported, furnish, verdict
from tests.accounts.audit.own_state import settle
from tests.factories import ACTOR, TenantFactory
from tests.fixtures.stored_text import stored_text

pytestmark = pytest.mark.django_db

Tampering = Callable[[], AbstractContextManager[None]]

ABOUT = ("grace.hopper", "grace@example.com", "grace@example.org", "198.51.100.77", "Brewster", "Murray")


@pytest.fixture(autouse=True)
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    settle(monkeypatch, tmp_path)
    return tmp_path


@pytest.fixture
def grace() -> User:
    """Somebody who did things and to whom things were done, whose account is closed."""
    user = users.create(username="grace.hopper", email="grace@example.com", actor=ACTOR).user
    User.objects.filter(id=user.id).update(
        first_name="Brewster", last_name="Murray", last_login=timezone.now()
    )
    members.add(tenant=TenantFactory(), user=user, role=Role.MEMBER, actor=ACTOR)
    users.change(
        user=user,
        username="grace.hopper",
        email="grace@example.org",
        is_staff=False,
        is_superuser=False,
        actor=ACTOR,
    )
    herself = Actor("user", str(user.id), "grace.hopper", "req_g", "198.51.100.77")
    with transaction.atomic():
        audit.record(herself, "thing.change", audit.ObjectRef("thing", "1"), {"n": 1}, {"n": 2})
    return users.close(user=user, actor=ACTOR)


def test_nothing_of_them_is_left_anywhere_in_the_database(grace: User) -> None:
    before = stored_text()
    for word in ABOUT:
        assert word in before
    users.erase(user=grace, actor=ACTOR)
    after = stored_text()
    for word in ABOUT:
        assert word not in after


def test_the_account_stays_without_a_person(grace: User) -> None:
    erased = users.erase(user=grace, actor=ACTOR)
    grace.refresh_from_db()
    assert grace == erased
    assert grace.username == f"erased-{grace.id.hex[:8]}"
    assert (grace.email, grace.first_name, grace.last_name, grace.last_login) == ("", "", "", None)
    assert grace.erased_at is not None
    assert not grace.has_usable_password()
    assert not grace.is_active


def test_it_is_an_event_that_says_how_much_and_not_what(grace: User) -> None:
    count = AuditPersonalValue.objects.filter(person_id=grace.id).count()
    assert count >= 6
    users.erase(user=grace, actor=ACTOR)
    event = AuditEvent.objects.order_by("-sequence")[0]
    assert (event.action, event.object_kind, event.object_id) == ("user.erase", "user", str(grace.id))
    assert (event.object_name, event.before) == ("", None)
    assert event.after == {"erased": {"audit_values": count, "conversations": 0, "prompts": 0, "outputs": 0}}
    assert not AuditPersonalValue.objects.filter(person_id=grace.id).exists()


def test_others_values_stay(grace: User) -> None:
    by_others = AuditPersonalValue.objects.exclude(person_id=grace.id).count()
    users.erase(user=grace, actor=ACTOR)
    assert AuditPersonalValue.objects.count() == by_others + 2
    created = AuditEvent.objects.get(action="user.create")
    assert disclose(created).actor_name == "tester"


def test_the_reader_says_that_it_was_erased(grace: User) -> None:
    users.erase(user=grace, actor=ACTOR)
    events = {event.action: disclose(event) for event in disclosable(AuditEvent.objects.all())}
    assert events["thing.change"].actor_name == ERASED
    assert events["thing.change"].address == ERASED
    assert events["user.create"].object_name == ERASED
    assert events["user.create"].after is not None
    assert events["user.create"].after["email"] == ERASED


def test_the_chain_holds_before_and_after_here_and_offline(grace: User, tmp_path: Path) -> None:
    key = furnish()
    assert verification.verify(from_scratch=True).fault is None
    users.erase(user=grace, actor=ACTOR)
    assert verification.verify(from_scratch=True).fault is None
    text = exported()
    for word in ABOUT:
        assert word.encode() not in text
    found = verdict(tmp_path / "auditor", text, "--key", key.public_key)
    assert found.status == 0, found.complaint


@pytest.mark.parametrize("person", [None, uuid.UUID(int=8)])
def test_whose_a_value_is_cannot_be_changed_unseen_so_that_it_would_be_left(
    person: uuid.UUID | None, grace: User, tampering: Tampering
) -> None:
    value = AuditPersonalValue.objects.filter(person_id=grace.id).order_by("event_id")[0]
    assert verification.verify(from_scratch=True).fault is None
    with tampering():
        set_row(value, person_id=person)
    fault = verification.verify(from_scratch=True).fault
    assert fault is not None
    assert (fault.kind, fault.reason, fault.sequence) == ("event", "altered", value.event_id)


def test_a_failed_log_in_leaves_an_address_that_is_nobody_s_and_nothing_that_was_typed(grace: User) -> None:
    stranger = Actor("anonymous", "", "not signed in", "req_s", "203.0.113.5")
    log_ins.record_failure(username="grace.hoper", actor=stranger)
    log_ins.record_failure(username="grace.hopper", actor=stranger)
    assert "grace.hoper" not in stored_text()
    [of_nobody, of_hers, her_name] = AuditPersonalValue.objects.filter(
        event__action="user.log_in_failed"
    ).order_by("event_id", "path")
    assert (of_nobody.path, of_nobody.person_id) == ("address", None)
    assert (of_hers.path, of_hers.person_id) == ("address", None)
    assert (her_name.path, her_name.person_id) == ("object_name", grace.id)
    users.erase(user=grace, actor=ACTOR)
    left = AuditPersonalValue.objects.filter(event__action="user.log_in_failed")
    assert {value.value for value in left} == {"203.0.113.5"}
    assert verification.verify(from_scratch=True).fault is None


def test_archives_never_had_what_is_erased(grace: User, directory: Path) -> None:
    furnish()
    [made] = archives.archive(timezone.now(), timezone.now() + timedelta(days=1), least=1)
    archived = str(list(archives.read(made)))
    for word in ABOUT:
        assert word not in archived
    users.erase(user=grace, actor=ACTOR)
    assert verification.verify(from_scratch=True).fault is None
    text = exported().decode()
    for word in ABOUT:
        assert word not in text


def test_only_closed_accounts_are_erased() -> None:
    user = users.create(username="ada", actor=ACTOR).user
    with pytest.raises(ChangeRefused, match="Close it first") as refused:
        users.erase(user=user, actor=ACTOR)
    assert refused.value.code is ChangeRefusal.USER_OPEN
    user.refresh_from_db()
    assert (user.username, user.erased_at) == ("ada", None)


def test_it_is_done_once(grace: User) -> None:
    first = users.erase(user=grace, actor=ACTOR)
    events = AuditEvent.objects.count()
    again = users.erase(user=grace, actor=ACTOR)
    assert again.erased_at == first.erased_at
    assert AuditEvent.objects.count() == events


def test_who_was_erased_is_not_reopened_and_gets_no_other_name(grace: User) -> None:
    users.erase(user=grace, actor=ACTOR)
    with pytest.raises(ChangeRefused) as refused:
        users.reopen(user=grace, actor=ACTOR)
    assert refused.value.code is ChangeRefusal.USER_ERASED
    rights = {"is_staff": False, "is_superuser": False}
    with pytest.raises(ChangeRefused) as refused:
        users.change(user=grace, username="grace", email="", actor=ACTOR, **rights)
    assert refused.value.code is ChangeRefusal.USER_ERASED


def test_two_people_whose_ids_begin_alike_get_names_of_their_own(grace: User) -> None:
    users.create(username=f"Erased-{grace.id.hex[:8]}", actor=ACTOR)
    assert users.erase(user=grace, actor=ACTOR).username == f"erased-{grace.id.hex}"


def test_where_something_cannot_be_erased_nothing_is(monkeypatch: pytest.MonkeyPatch, grace: User) -> None:
    def refuses(user_id: object) -> dict[str, int]:
        raise ChangeRefused(ChangeRefusal.STILL_RUNNING, "not yet")

    monkeypatch.setattr(personal_data, "_erasers", [*personal_data._erasers, refuses])
    values = AuditPersonalValue.objects.count()
    with pytest.raises(ChangeRefused, match="not yet"):
        users.erase(user=grace, actor=ACTOR)
    grace.refresh_from_db()
    assert (grace.username, grace.erased_at) == ("grace.hopper", None)
    assert AuditPersonalValue.objects.count() == values


def run(*arguments: str) -> str:
    out = StringIO()
    call_command("user", "erase", *arguments, stdout=out)
    return out.getvalue()


def test_the_command_asks_for_the_name(grace: User, monkeypatch: pytest.MonkeyPatch) -> None:
    for typed in ("", "y", "grace"):
        monkeypatch.setattr("builtins.input", lambda question, typed=typed: typed)
        with pytest.raises(CommandError, match="Nothing was changed"):
            run("grace.hopper")
    monkeypatch.setattr("builtins.input", lambda question: "grace.hopper")
    assert str(grace.id) in run("grace.hopper")
    grace.refresh_from_db()
    assert grace.erased_at is not None


def test_the_command_needs_a_terminal_or_a_yes(grace: User, monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody_there(question: str) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", nobody_there)
    with pytest.raises(CommandError, match="--yes"):
        run("grace.hopper")
    assert "Erased" in run("grace.hopper", "--yes")


def test_the_command_says_whom_it_cannot_erase() -> None:
    users.create(username="ada", actor=ACTOR)
    with pytest.raises(CommandError, match="Close it first"):
        run("ada", "--yes")
    with pytest.raises(CommandError, match="no user 'eve'"):
        run("eve", "--yes")
