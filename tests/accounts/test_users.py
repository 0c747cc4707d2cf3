from __future__ import annotations

import pytest
from django.contrib.auth import authenticate
from django.test import Client

from accounts import users
from accounts.models import AuditEvent, User
from accounts.refusals import ChangeRefusal, ChangeRefused
from tests.factories import ACTOR, PASSWORD, OperatorFactory, UserFactory
from tests.fixtures.stored_text import stored_text

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey")]


def test_a_new_user_has_a_one_time_password_that_is_stored_nowhere() -> None:
    issued = users.create(username="ada", email="ada@example.com", actor=ACTOR)
    assert issued.user.must_change_password
    assert authenticate(username="ada", password=issued.password) == issued.user
    assert issued.password not in stored_text()
    assert issued.password not in repr(issued)
    event = AuditEvent.objects.get()
    assert event.after is not None
    assert event.after["email"] == "***"


def test_one_time_passwords_differ_and_can_be_read_aloud() -> None:
    passwords = {users.create(username=f"u{n}", actor=ACTOR).password for n in range(20)}
    assert len(passwords) == 20
    assert all(len(password) == 23 and not set(password) & set("aeiou01l") for password in passwords)


def test_a_chosen_password_replaces_the_one_time_one() -> None:
    issued = users.create(username="ada", actor=ACTOR)
    user = users.set_password(user=issued.user, password=PASSWORD, actor=ACTOR)
    assert not user.must_change_password
    assert authenticate(username="ada", password=PASSWORD) == user
    assert authenticate(username="ada", password=issued.password) is None
    assert PASSWORD not in stored_text()


@pytest.mark.parametrize("weak", ["brief", "1234567890", "ada-ada-ada", PASSWORD])
def test_a_weak_or_unchanged_password_is_refused(weak: str) -> None:
    user = UserFactory(username="ada-ada-ada")
    with pytest.raises(ChangeRefused) as refusal:
        users.set_password(user=user, password=weak, actor=ACTOR)
    assert refusal.value.code == ChangeRefusal.WEAK_PASSWORD
    assert weak not in refusal.value.message


def test_a_password_reset_ends_every_session() -> None:
    user = OperatorFactory()
    client = Client()
    client.force_login(user)
    session_user = client.session["_auth_user_hash"]
    users.issue_one_time_password(user=user, actor=ACTOR)
    user.refresh_from_db()
    assert user.get_session_auth_hash() != session_user


def test_a_closed_user_cannot_sign_in_until_reopened() -> None:
    user = UserFactory()
    users.close(user=user, actor=ACTOR)
    assert authenticate(username=user.username, password=PASSWORD) is None
    with pytest.raises(ChangeRefused) as refusal:
        users.issue_one_time_password(user=user, actor=ACTOR)
    assert refusal.value.code == ChangeRefusal.USER_CLOSED
    users.reopen(user=user, actor=ACTOR)
    assert authenticate(username=user.username, password=PASSWORD) == user


def test_the_last_operator_cannot_be_closed_or_demoted() -> None:
    operator = OperatorFactory()
    OperatorFactory(is_active=False)
    with pytest.raises(ChangeRefused) as refusal:
        users.close(user=operator, actor=ACTOR)
    assert refusal.value.code == ChangeRefusal.LAST_OPERATOR
    with pytest.raises(ChangeRefused):
        users.change(
            user=operator,
            username=operator.username,
            email="",
            is_staff=True,
            is_superuser=False,
            actor=ACTOR,
        )
    OperatorFactory()
    assert not users.close(user=operator, actor=ACTOR).is_active


def test_usernames_are_one_person_s_whatever_their_case() -> None:
    UserFactory(username="Ada")
    with pytest.raises(ChangeRefused) as refusal:
        users.create(username="ada", actor=ACTOR)
    assert refusal.value.code == ChangeRefusal.NAME_TAKEN


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"username": ""}, "username"),
        ({"username": "a b"}, "username"),
        ({"username": "a", "email": "x"}, "email"),
    ],
)
def test_an_impossible_user_is_refused_by_the_field_at_fault(fields: dict[str, str], field: str) -> None:
    with pytest.raises(ChangeRefused) as refusal:
        users.create(actor=ACTOR, **fields)  # type: ignore[arg-type]
    assert refusal.value.field == field
    assert not User.objects.exists()


def test_a_changed_e_mail_address_is_recorded_without_being_shown() -> None:
    user = UserFactory(email="a@example.com")
    users.change(
        user=user,
        username=user.username,
        email="b@example.com",
        is_staff=False,
        is_superuser=False,
        actor=ACTOR,
    )
    event = AuditEvent.objects.get()
    assert event.action == "user.change"
    assert "example.com" not in str(event.before) + str(event.after)


def test_an_auditor_is_made_and_unmade_may_open_the_admin_and_all_of_it_is_recorded() -> None:
    user = users.create(username="ada", is_auditor=True, actor=ACTOR).user
    assert (user.is_auditor, user.is_staff, user.is_superuser) == (True, True, False)
    same = {"user": user, "username": "ada", "email": "", "is_superuser": False, "actor": ACTOR}
    # Whoever does not say is not asked to say it again.
    kept = users.change(**same, is_staff=False)  # type: ignore[arg-type]
    assert (kept.is_auditor, kept.is_staff) == (True, True)
    ended = users.change(**same, is_staff=False, is_auditor=False)  # type: ignore[arg-type]
    assert (ended.is_auditor, ended.is_staff) == (False, False)
    created, changed = AuditEvent.objects.order_by("sequence")
    assert (created.action, changed.action) == ("user.create", "user.change")
    assert created.after is not None
    assert changed.before is not None
    assert changed.after is not None
    assert created.after["is_auditor"] is True
    assert (changed.before["is_auditor"], changed.after["is_auditor"]) == (True, False)
    assert (changed.before["is_staff"], changed.after["is_staff"]) == (True, False)
