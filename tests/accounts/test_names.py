"""What people type as a name or a reason: one line of what can be seen, without a credential, at every place."""

from __future__ import annotations

import io
from decimal import Decimal
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from hypothesis import given
from hypothesis import strategies as st

from accounts import approvals, entitlements, keys, lanes, prices, tenants, users
from accounts.models import AuditEvent, Lane, Scope
from accounts.refusals import ChangeRefusal, ChangeRefused, checked_content, checked_text
from accounts.webhooks import endpoints
from tests.factories import (
    ACTOR,
    ApiKeyFactory,
    EntitlementFactory,
    OperatorFactory,
    TenantFactory,
    UserFactory,
    WebhookEndpointFactory,
)
from tests.fixtures.admin import save

GITHUB = "ghp_" + "q7Zt2Xw9Lr4Kb8Vn3Hc6Jd1Fs5Gp0Myq7Zt"
#: What stands inside a name that is to be refused, and why it is.
HOSTILE = {
    "a line break": ("two\nlines", ChangeRefusal.INVALID),
    "a carriage return": ("two\rlines", ChangeRefusal.INVALID),
    "a null": ("a\0b", ChangeRefusal.INVALID),
    "an escape": ("a\x1b[31mb", ChangeRefusal.INVALID),
    "a next line": ("a\x85b", ChangeRefusal.INVALID),
    "a line separator": ("a\u2028b", ChangeRefusal.INVALID),
    "an override of direction": ("a\u202egnp.b", ChangeRefusal.INVALID),
    "an isolate": ("a\u2066b", ChangeRefusal.INVALID),
    "a space without width": ("a\u200bb", ChangeRefusal.INVALID),
    "a byte order mark": ("a\ufeffb", ChangeRefusal.INVALID),
    "a tag": ("a\U000e0041b", ChangeRefusal.INVALID),
    "half a character": ("a\ud800b", ChangeRefusal.INVALID),
    "a credential": (f"for {GITHUB}", ChangeRefusal.CONTAINS_CREDENTIAL),
}
each_hostile = pytest.mark.parametrize(("text", "code"), HOSTILE.values(), ids=HOSTILE)


@each_hostile
def test_what_is_not_seen_and_what_is_secret_is_refused_by_the_field_and_not_repeated(
    text: str, code: ChangeRefusal
) -> None:
    with pytest.raises(ChangeRefused) as refused:
        checked_text(text, field="reason", most=200)
    assert (refused.value.code, refused.value.field) == (code, "reason")
    assert "Leave it out" in refused.value.message
    assert refused.value.message.isprintable()
    assert GITHUB not in refused.value.message


@pytest.mark.parametrize(
    "text",
    [
        "Späte Züge",
        "信号所",
        "نرم\u200cافزار",
        "👩\u200d🚒 crew",
        "a – b… “c”",
        "tab-free",
        "q\u0301",
        "x" * 200,
    ],
)
def test_every_script_is_taken_as_it_is(text: str) -> None:
    assert checked_text(text, field="name", most=200) == text


def test_space_and_line_breaks_around_it_are_no_part_of_it() -> None:
    assert checked_text(" \n a b\t\r\n", field="name", most=3) == "a b"


@given(st.text(max_size=40))
def test_whatever_is_taken_is_one_line(text: str) -> None:
    try:
        taken = checked_text(text, field="name", most=40, least=0)
    except ChangeRefused:
        return
    assert len(taken.splitlines()) <= 1
    assert taken == taken.strip()
    taken.encode()


def test_what_is_used_and_not_shown_may_have_lines_and_be_a_secret() -> None:
    text = f"Two\nlines about {GITHUB}\n"
    assert checked_content(text, field="text", most=100) == text
    with pytest.raises(ChangeRefused, match="1 to 3 characters; this one has 4"):
        checked_content("a\n\nb", field="text", most=3)
    with pytest.raises(ChangeRefused):
        checked_content(" \n ", field="text", most=3)


def _rename_key(text: str) -> Any:
    key: Any = ApiKeyFactory()
    return keys.change(
        key=key, name=text, scopes=[Scope.READ], default_lane=None, expires_at=None, actor=ACTOR
    )


def _user(text: str) -> Any:
    return users.create(username=text, actor=ACTOR)


def _email(text: str) -> Any:
    return users.create(username="ada", email=f"{text}@example.com", actor=ACTOR)


def _approve(text: str) -> Any:
    requested: Any = EntitlementFactory(granted_by=OperatorFactory(), approval="requested")
    return approvals.approve(entitlement=requested, decided_by=OperatorFactory(), actor=ACTOR, reason=text)


def _refuse(text: str) -> Any:
    requested: Any = EntitlementFactory(granted_by=OperatorFactory(), approval="requested")
    return approvals.refuse(entitlement=requested, decided_by=OperatorFactory(), actor=ACTOR, reason=text)


def _price(text: str) -> Any:
    return prices.add(
        model=text,
        lane=None,
        currency="EUR",
        prompt=Decimal(1),
        cached=Decimal(1),
        completion=Decimal(1),
        actor=ACTOR,
    )


def _low() -> Any:
    return Lane.objects.get(name="low")


#: Every verb that takes such a text, by the field that it names.
VERBS: dict[str, tuple[str, Any]] = {
    "a new key": ("name", lambda text: keys.create(tenant=TenantFactory(), name=text, actor=ACTOR)),
    "a key": ("name", _rename_key),
    "a new tenant": ("name", lambda text: tenants.create(name=text, slug="rail", actor=ACTOR)),
    "a tenant": ("name", lambda text: tenants.rename(tenant=TenantFactory(), name=text, actor=ACTOR)),
    "a short name": ("slug", lambda text: tenants.create(name="Rail", slug=text, actor=ACTOR)),
    "a grant": (
        "reason",
        lambda text: entitlements.grant(tenant=TenantFactory(), lane=_low(), reason=text, actor=ACTOR),
    ),
    "a changed grant": (
        "reason",
        lambda text: entitlements.change(entitlement=EntitlementFactory(), reason=text, actor=ACTOR),
    ),
    "an approval": ("reason", _approve),
    "a refusal": ("reason", _refuse),
    "a lane": ("description", lambda text: lanes.describe(lane=_low(), description=text, actor=ACTOR)),
    "a new endpoint": (
        "description",
        lambda text: endpoints.create(
            tenant=TenantFactory(), url="https://hooks.example.com/", description=text, actor=ACTOR
        ),
    ),
    "an endpoint": (
        "description",
        lambda text: endpoints.change(
            endpoint=WebhookEndpointFactory(), url="https://hooks.example.com/", description=text, actor=ACTOR
        ),
    ),
    "a user": ("username", _user),
    "an address": ("email", _email),
    "a price": ("model", _price),
}


@pytest.mark.django_db
@pytest.mark.parametrize("text", ["two\nlines", f"for {GITHUB}"], ids=["lines", "credential"])
@pytest.mark.parametrize(("field", "verb"), VERBS.values(), ids=VERBS)
def test_every_verb_that_takes_a_name_or_a_reason_refuses_it(field: str, verb: Any, text: str) -> None:
    with pytest.raises(ChangeRefused) as refused:
        verb(text)
    assert refused.value.field == field
    assert GITHUB not in refused.value.message
    assert not AuditEvent.objects.exists()


@pytest.mark.parametrize("text", ["two\nlines", "a\u202eb", f"for {GITHUB}"])
def test_the_admin_s_form_says_so_beside_the_field(text: str, as_operator: Client) -> None:
    tenant = TenantFactory()
    for page, field, values in (
        ("apikey", "name", {"tenant": tenant.pk, "name": text, "scopes": ["read"], "default_lane": ""}),
        ("tenant", "name", {"name": text, "slug": "a", "time_zone": "UTC"}),
    ):
        answer = save(as_operator, reverse(f"admin:accounts_{page}_add"), values)
        assert answer.status_code == 200, page
        assert "Leave it out" in str(answer.context["adminform"].form.errors[field]), page
    assert not AuditEvent.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize("text", ["two\nlines", "a\u202eb", f"for {GITHUB}"])
def test_a_command_says_so(text: str) -> None:
    TenantFactory(slug="rail")
    person: Any = UserFactory()
    for arguments in (
        ("key", "create", "--tenant", "rail", "--name", text),
        ("tenant", "create", "road", "--name", text),
        ("entitlement", "grant", "--tenant", "rail", "--lane", "low", "--reason", text),
        ("user", "create", "x", "--email", f"{text}@example.com"),
    ):
        with pytest.raises(CommandError, match="Leave it out"):
            call_command(*arguments, stdout=io.StringIO(), stderr=io.StringIO())
    assert not AuditEvent.objects.exists()
    assert person.pk
