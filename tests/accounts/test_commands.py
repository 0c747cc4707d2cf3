from __future__ import annotations

import json
import os
import pwd
from io import StringIO
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from accounts.audit.reading import disclose
from accounts.authentication import InvalidKey, authenticate_key
from accounts.limits import Limits
from accounts.models import Allowance, ApiKey, AuditEvent, Membership, User
from accounts.principal import Principal
from accounts.tenancy import every_tenant
from tests.factories import ApiKeyFactory, LanguageModelFactory, TenantFactory

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("valkey")]


def run(*arguments: str) -> str:
    output = StringIO()
    call_command(*arguments, stdout=output, stderr=StringIO())
    return output.getvalue().strip()


def test_a_key_made_on_the_command_line_works_until_it_is_revoked_there() -> None:
    TenantFactory(slug="rail")
    raw = run("key", "create", "--tenant", "rail", "--name", "ci", "--scope", "read", "--lane", "low")
    principal = authenticate_key(raw)
    assert (principal.name, principal.scopes, principal.default_lane) == ("ci", {"read"}, "low")
    listed = run("key", "list")
    assert f"sb_{principal.api_key_prefix}…" in listed
    assert raw not in listed
    run("key", "revoke", principal.api_key_prefix)
    with pytest.raises(InvalidKey):
        authenticate_key(raw)
    assert "revoked" in run("key", "list", "--tenant", "rail")
    event = AuditEvent.objects.get(action="api_key.revoke")
    assert event.actor_kind == "system"
    assert event.actor_name == "manage.py key revoke"
    assert disclose(event).actor_name == f"manage.py key revoke ({pwd.getpwuid(os.getuid()).pw_name})"


def test_rotating_prints_the_successor() -> None:
    key: Any = ApiKeyFactory()
    answer = json.loads(run("key", "rotate", f"sb_{key.prefix}…", "--overlap-hours", "1", "--json"))
    assert authenticate_key(answer["api_key"]).api_key_prefix == answer["prefix"]
    assert authenticate_key(key.raw).api_key_prefix == key.prefix


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["key", "create", "--tenant", "nowhere", "--name", "x"], "no tenant 'nowhere'. There are: rail"),
        (["key", "create", "--tenant", "rail", "--name", "x", "--lane", "express"], "no lane 'express'"),
        (["key", "create", "--tenant", "rail", "--name", ""], "1 to 100 characters"),
        (["key", "revoke", "nothing"], "`manage.py key list` prints them"),
        (["tenant", "close", "nowhere"], "no tenant 'nowhere'"),
        (["tenant", "create", "rail"], "already"),
        (["tenant", "create", "x", "--lane", "express"], "no lane 'express'"),
        (["user", "password", "nobody"], "no user 'nobody'"),
        (["user", "create", "x", "--tenant", "nowhere"], "no tenant 'nowhere'"),
    ],
)
def test_a_mistake_is_named_with_what_to_do(arguments: list[str], said: str) -> None:
    TenantFactory(slug="rail")
    with pytest.raises(CommandError, match=said.replace("(", r"\(")):
        run(*arguments)


def test_a_whole_key_is_not_taken_on_the_command_line() -> None:
    key: Any = ApiKeyFactory()
    with pytest.raises(CommandError, match="shell's history") as error:
        run("key", "revoke", key.raw)
    assert key.raw not in str(error.value)


def test_tenants_are_made_listed_closed_and_reopened() -> None:
    assert "key create --tenant rail" in run("tenant", "create", "rail", "--name", "Rail", "--lane", "low")
    assert run("tenant", "list").split() == ["rail", "Rail", "open"]
    run("tenant", "close", "rail")
    assert "closed" in run("tenant", "list")
    run("tenant", "reopen", "rail")
    assert "open" in run("tenant", "list")


def test_users_are_made_with_a_role_and_given_a_new_password() -> None:
    TenantFactory(slug="rail")
    first = run("user", "create", "ada", "--tenant", "rail", "--role", "owner")
    with every_tenant("test"):
        assert Membership.objects.get().role == "owner"
    second = run("user", "password", "ada")
    user = User.objects.get()
    assert user.check_password(second)
    assert not user.check_password(first)
    assert run("user", "list").split() == ["ada", "user", "open"]
    run("user", "create", "eve", "--auditor")
    assert User.objects.get(username="eve").is_auditor
    assert run("user", "list").split()[3:] == ["eve", "auditor", "open"]


@pytest.mark.parametrize("listing", ["user", "tenant", "key"])
def test_an_empty_list_says_so_and_how_to_begin(listing: str) -> None:
    said = run(listing, "list")
    assert said.startswith("There is no ")
    assert f"manage.py {listing} create" in said


def test_one_event_is_one_event() -> None:
    run("user", "create", "ada")
    assert "The chain holds: 1 event, 0 sealed assignments" in run("audit", "verify")


def test_the_chain_is_verified_and_a_break_is_an_error(tampering: Any) -> None:
    run("tenant", "create", "rail")
    assert "The chain holds: 4 events" in run("audit", "verify")
    with tampering():
        AuditEvent.objects.filter(sequence=3).update(actor_name="somebody else")
    with pytest.raises(CommandError, match="event 3"):
        run("audit", "verify", "--from-scratch")


def test_the_pepper_is_rotated_and_old_keys_work_on() -> None:
    key: Any = ApiKeyFactory()
    assert "New keys are made with pepper" in run("key", "rotate-pepper")
    assert authenticate_key(key.raw).api_key_id == key.id


def test_all_that_narrows_a_key_is_said_on_the_command_line_and_taken_back_there() -> None:
    TenantFactory(slug="rail")
    for name in ("small", "large"):
        LanguageModelFactory(name=name)
    narrowing = ("--lanes", "normal,low", "--models", "small", "--from", "192.0.2.0/24, 2001:db8::1")
    limits = ("--tokens-per-day", "1000", "--requests-per-minute", "2", "--concurrency", "0")
    raw = run("key", "create", "--tenant", "rail", "--name", "ci", *narrowing, *limits)
    principal = authenticate_key(raw, "2001:db8::1")
    assert principal.allowed_lanes == {"normal", "low"}
    assert principal.allowed_models == {"small"}
    assert _limits(principal) == Limits(tokens_per_day=1000, requests_per_minute=2, concurrency=0)
    assert "normal, low; small; 2 networks; 3 limits" in run("key", "list")

    prefix = principal.api_key_prefix
    changes = ("--lane", "low", "--concurrency", "none", "--from", "any", "--tokens-per-week", "70")
    run("key", "change", prefix, *changes, "--expires-in-days", "1")
    changed = authenticate_key(raw)
    assert (changed.default_lane, changed.allowed_models) == ("low", {"small"})
    assert _limits(changed) == Limits(tokens_per_day=1000, tokens_per_week=70, requests_per_minute=2)
    assert "expires" in run("key", "list")

    run("key", "change", prefix, "--lane", "none", "--expires-in-days", "none", "--name", "renamed")
    changed = authenticate_key(raw)
    assert (changed.name, changed.default_lane, changed.scopes) == ("renamed", None, {"inference", "read"})
    assert "works" in run("key", "list")
    events = AuditEvent.objects.filter(action="api_key.change").order_by("sequence")
    assert [event.after["tokens_per_week"] for event in events] == [70, 70]


def _limits(principal: Principal) -> Limits:
    with every_tenant("test"):
        return Allowance.objects.get(id=principal.key_allowance_id).limits


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--lanes", "express"], "no lane 'express'. There are: high, normal, low"),
        (["--lanes", "low,,normal"], "empty name in it"),
        (["--models", "huge"], "no model 'huge'. There are: none"),
        (["--from", "192.0.2.7/24"], "write 192.0.2.0/24 for the network"),
        (["--tokens-per-day", "many"], "neither a whole number nor 'none'"),
        (["--tokens-per-day", "-1"], "0 (none at all) or more"),
        (["--expires-in-days", "soon"], "neither a number nor 'none'"),
        (["--expires-in-days", "-1"], "cannot expire in the past"),
    ],
)
def test_a_mistake_in_what_narrows_a_key_is_named(arguments: list[str], said: str) -> None:
    TenantFactory(slug="rail")
    with pytest.raises(CommandError) as error:
        run("key", "create", "--tenant", "rail", "--name", "x", *arguments)
    assert said in str(error.value)


def test_a_key_for_operators_is_made_on_the_command_line() -> None:
    TenantFactory(slug="rail")
    raw = run("key", "create", "--tenant", "rail", "--name", "ops", "--scope", "operator")
    assert authenticate_key(raw).scopes == {"operator"}
    with every_tenant("test"):
        prefix = ApiKey.objects.get().prefix
    assert authenticate_key(json.loads(run("key", "rotate", prefix, "--json"))["api_key"]).scopes == {
        "operator"
    }
