"""What may stand in an event: no secret, of people a commitment, and nothing that could be written in two ways."""

from __future__ import annotations

import uuid
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from django.db import transaction
from django.utils.functional import SimpleLazyObject

from accounts import audit, key_text
from accounts.audit.canonical import commitment
from accounts.audit.values import LONGEST_PERSONAL, PersonalValue, masked, plain
from accounts.models import AuditEvent, AuditPersonalValue, Role
from accounts.principal import Actor
from tests.factories import ACTOR, MembershipFactory, UserFactory

THING = audit.ObjectRef("thing", "1", "a thing")


def _recorded(**values: Any) -> AuditEvent:
    arguments = {"actor": ACTOR, "action": "thing.change", "obj": THING, "before": None, "after": None}
    with transaction.atomic():
        return audit.record(**{**arguments, **values})


@pytest.mark.parametrize(
    "name",
    [
        "password",
        "old_password",
        "secret",
        "webhook_secret",
        "token",
        "csrf_token",
        "digest",
        "pepper",
        "authorization",
        "cookie",
        "raw",
    ],
)
def test_a_field_that_is_named_like_a_secret_is_masked(name: str) -> None:
    assert masked({name: "hunter2", "deep": {name: "hunter2"}}) == {name: "***", "deep": {name: "***"}}


@pytest.mark.parametrize("name", ["max_tokens", "tokens_per_day", "secret_version", "pepper_id", "drawn"])
def test_a_field_that_only_sounds_like_one_is_not(name: str) -> None:
    assert masked({name: "5"}) == {name: "5"}


def test_an_empty_secret_is_told_from_one_that_is_set() -> None:
    assert masked({"password": "", "token": None, "must_change_password": True}) == {
        "password": "",
        "token": None,
        "must_change_password": True,
    }


@pytest.mark.django_db
def test_api_keys_are_masked_wherever_they_stand() -> None:
    raw = str(key_text.draw())
    event = _recorded(
        actor=Actor.system(f"manage.py {raw}"),
        obj=audit.ObjectRef("thing", "1", raw),
        before={"name": f"my {raw} key", "deep": [{"list": [raw]}]},
        after={"cut": raw[:-20]},
    )
    assert event.before == {"name": "my *** key", "deep": [{"list": ["***"]}]}
    assert event.after == {"cut": "***"}
    assert (event.actor_name, event.object_name) == ("manage.py ***", "***")


GITHUB = "ghp_" + "q7Zt2Xw9Lr4Kb8Vn3Hc6Jd1Fs5Gp0Myq7Zt"


@pytest.mark.django_db
def test_credentials_of_others_are_masked_wherever_they_stand() -> None:
    event = _recorded(
        obj=audit.ObjectRef("thing", "1", f"the {GITHUB} one"),
        before={"source": "https://grace:hunter2@example.com/a.gguf", "deep": [{"list": [GITHUB]}]},
        after={"reason": f"for {GITHUB}", "sha256": "0" * 64},
    )
    assert event.object_name == "the *** one"
    assert event.before == {"source": "https://***@example.com/a.gguf", "deep": [{"list": ["***"]}]}
    assert event.after == {"reason": "for ***", "sha256": "0" * 64}


@pytest.mark.parametrize(
    ("path", "recorded"),
    [
        ("/home/jane.doe/models/a.gguf", "/home/***/models/a.gguf"),
        ("/home/jane.doe", "/home/***"),
        ("/Users/jane/.signalbox/models/a", "/Users/***/.signalbox/models/a"),
        ("/var/home/jane/a", "/var/home/***/a"),
        ("from '/home/jane/a b'", "from '/home/***/a b'"),
        ("/srv/models/home/a.gguf", "/srv/models/home/a.gguf"),
        ("https://example.com/home/a.gguf", "https://example.com/home/a.gguf"),
        ("org/home/a", "org/home/a"),
    ],
)
def test_whose_home_a_path_leads_through_is_masked(path: str, recorded: str) -> None:
    assert masked({"directory": path}) == {"directory": recorded}


def test_what_is_compared_before_it_is_recorded_is_not_masked_yet() -> None:
    """A row that moves from one home to another has changed."""
    before, after = (plain({"directory": f"/home/{name}/a", "token": name}) for name in ("jane", "john"))
    assert before != after
    assert masked(before) == masked(after)


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (Role.OWNER, "owner"),
        (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
        (datetime(2027, 1, 2, tzinfo=timezone(timedelta(hours=9))), "2027-01-01T15:00:00+00:00"),
        ({"b", "a"}, ["a", "b"]),
        ((1, [None, True]), [1, [None, True]]),
    ],
)
def test_values_become_plain_ones(value: Any, written: Any) -> None:
    assert plain(value) == written


@pytest.mark.django_db
@pytest.mark.parametrize("value", [1.5, object(), b"bytes"])
def test_what_has_no_one_written_form_is_refused(value: object) -> None:
    with pytest.raises(audit.AuditError, match="plain"), transaction.atomic():
        audit.record(ACTOR, "thing.change", THING, None, {"value": value})
    assert not AuditEvent.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize("action", ["changed it", "thing", "Thing.change", "thing.change.", ".change"])
def test_an_action_is_an_object_and_a_verb(action: str) -> None:
    with pytest.raises(audit.AuditError, match=r"object\.verb"), transaction.atomic():
        audit.record(ACTOR, action, THING, None, None)


@pytest.mark.django_db
def test_what_is_about_a_person_stands_beside_the_chain_with_a_salt_of_its_own() -> None:
    ada: Any = UserFactory(username="ada", email="ada@example.com")
    event = _recorded(
        action="user.change",
        obj=ada,
        before={"username": "ada", "email": "", "is_staff": False},
        after={"username": "ada l.", "email": "ada@example.com", "is_staff": True},
    )
    assert event.before == {"username": "***", "email": "", "is_staff": False}
    assert event.after == {"username": "***", "email": "***", "is_staff": True}
    assert (event.actor_name, event.object_name, event.address) == ("", "", "")
    kept = {one.path: one for one in AuditPersonalValue.objects.all()}
    assert {path: (one.value, one.person_id) for path, one in kept.items()} == {
        "actor_name": (ACTOR.name, uuid.UUID(ACTOR.id)),
        "address": (ACTOR.address, uuid.UUID(ACTOR.id)),
        "object_name": ("ada", ada.id),
        "before.username": ("ada", ada.id),
        "after.username": ("ada l.", ada.id),
        "after.email": ("ada@example.com", ada.id),
    }
    assert len({one.salt for one in kept.values()}) == len(kept)
    assert event.personal == {
        path: commitment(one.salt, one.person_id, one.value) for path, one in kept.items()
    }


@pytest.mark.django_db
def test_the_user_of_a_request_is_a_person_too() -> None:
    """What stands there is a stand-in, of another type."""
    user: Any = UserFactory(username="ada lovelace")
    event = _recorded(action="user.log_out", obj=SimpleLazyObject(lambda: user))
    assert (event.object_kind, event.object_id, event.object_name) == ("user", str(user.id), "")
    assert AuditPersonalValue.objects.get(path="object_name").value == "ada lovelace"


@pytest.mark.django_db
def test_a_membership_is_named_after_its_member() -> None:
    membership = MembershipFactory()
    event = _recorded(action="membership.add", obj=membership)
    assert event.object_name == ""
    assert AuditPersonalValue.objects.get(path="object_name").person_id == membership.user_id


@pytest.mark.django_db
def test_a_stranger_s_address_is_personal_too_and_nobody_s() -> None:
    stranger = Actor(kind="anonymous", id="", name="not signed in", address="192.0.2.9")
    event = _recorded(actor=stranger)
    assert (event.actor_name, event.address, list(event.personal)) == ("not signed in", "", ["address"])
    assert AuditPersonalValue.objects.get().person_id is None


@pytest.mark.django_db
def test_keys_and_the_system_are_no_people() -> None:
    event = _recorded(actor=Actor(kind="api_key", id=str(uuid.uuid4()), name="the app's"))
    assert (event.actor_name, event.personal) == ("the app's", {})
    event = _recorded(actor=Actor.system("sealing"))
    assert (event.actor_name, event.personal) == ("sealing", {})
    assert not AuditPersonalValue.objects.exists()


def test_a_personal_value_commits_to_what_is_kept() -> None:
    kept = PersonalValue.of("after.email", "a" * (LONGEST_PERSONAL + 10), None)
    assert len(kept.value) == LONGEST_PERSONAL
    assert kept.commitment == commitment(kept.salt, None, kept.value)
    assert PersonalValue.of("after.email", "a", None).salt != kept.salt
