"""The sections of a key's page that narrow it: lanes, models, networks and limits."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts import reservations
from accounts.authentication import authenticate_key
from accounts.limits import Limits
from accounts.models import ApiKey, AuditEvent, BudgetWindow
from accounts.tenancy import every_tenant
from tests.factories import ApiKeyFactory, LanguageModelFactory, TenantFactory
from tests.fixtures.admin import save

_KEY = re.compile(r"sb_[0-9A-Za-z]{12}_[0-9A-Za-z]{49}")
NARROWING: dict[str, Any] = {
    "allowed_lanes": ["normal", "low"],
    "allowed_models": ["small"],
    "allowed_networks": "192.0.2.0/24\r\n\r\n 2001:db8::1 \r\n192.0.2.0/24",
    "tokens_per_day": "1000",
    "concurrency": "0",
}


def _url(name: str, *arguments: object) -> str:
    return reverse(f"admin:accounts_apikey_{name}", args=arguments)


def _fields(**changes: Any) -> dict[str, Any]:
    return {"name": "app", "scopes": ["inference", "read"], "default_lane": "", **changes}


@pytest.fixture
def models(db: None) -> None:
    LanguageModelFactory(name="small")
    LanguageModelFactory(name="large")
    LanguageModelFactory(name="old", retired_at=timezone.now())


def _stored() -> ApiKey:
    with every_tenant("test"):
        return ApiKey.objects.select_related("allowance").get()


def _reserve(key: ApiKey, tokens: int) -> None:
    with every_tenant("test"):
        reservations.reserve(
            generation_id=key.id,
            tenant_id=key.tenant_id,
            entitlement_allowance_id=key.allowance_id,
            key_allowance_id=None,
            tokens=tokens,
            now=timezone.now(),
        )


@pytest.mark.usefixtures("models")
def test_a_key_is_made_with_all_that_narrows_it(as_operator: Client) -> None:
    answer = save(as_operator, _url("add"), _fields(tenant=TenantFactory().id, **NARROWING))
    [raw] = set(_KEY.findall(answer.content.decode()))
    principal = authenticate_key(raw, "192.0.2.7")
    assert (principal.allowed_lanes, principal.allowed_models) == ({"normal", "low"}, {"small"})
    key = _stored()
    assert key.allowed_networks == ["192.0.2.0/24", "2001:db8::1"]
    assert key.allowance.limits == Limits(tokens_per_day=1000, concurrency=0)
    assert AuditEvent.objects.get().after["tokens_per_day"] == 1000


@pytest.mark.usefixtures("models")
def test_saving_a_narrowed_key_as_its_page_shows_it_changes_nothing(as_operator: Client) -> None:
    save(as_operator, _url("add"), _fields(tenant=TenantFactory().id, **NARROWING))
    key = _stored()
    form = as_operator.get(_url("change", key.pk)).context["adminform"].form
    shown = {name: form[name].value() for name in form.fields}
    assert shown["allowed_networks"] == "192.0.2.0/24\n2001:db8::1"
    sent = {name: "" if value is None else value for name, value in shown.items() if name != "expires_at"}
    assert as_operator.post(_url("change", key.pk), sent).status_code == 302
    assert list(AuditEvent.objects.values_list("action", flat=True)) == ["api_key.create"]
    assert _stored().allowance.limits == key.allowance.limits


@pytest.mark.usefixtures("models")
@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"allowed_networks": "192.0.2.7/24"}, "allowed_networks", "write 192.0.2.0/24 for the network"),
        ({"allowed_lanes": ["low"], "default_lane": "high"}, "default_lane", "not among the lanes"),
        ({"allowed_models": ["old"]}, "allowed_models", "old is not one of the available choices"),
        ({"tokens_per_day": "-1"}, "tokens_per_day", "greater than or equal to 0"),
        ({"tokens_per_day": str(2**63)}, "tokens_per_day", "less than or equal to"),
        ({"tokens_per_day": "many"}, "tokens_per_day", "Enter a whole number"),
    ],
)
def test_a_mistake_is_shown_at_its_field_and_what_was_typed_stays(
    as_operator: Client, changes: dict[str, Any], field: str, said: str
) -> None:
    answer = save(as_operator, _url("add"), _fields(tenant=TenantFactory().id, **changes))
    form = answer.context["adminform"].form
    assert said in " ".join(form.errors[field])
    assert form[field].value() == changes[field]
    with every_tenant("test"):
        assert not ApiKey.objects.exists()


@pytest.mark.usefixtures("models")
def test_only_offered_models_can_be_ticked_and_a_retired_one_that_is_held_stays(as_operator: Client) -> None:
    def choices(url: str) -> list[str]:
        fields = as_operator.get(url).context["adminform"].form.fields
        return [value for value, _ in fields["allowed_models"].choices]

    key = ApiKeyFactory(allowed_models=["old"])
    assert choices(_url("add")) == ["large", "small"]
    assert choices(_url("change", key.pk)) == ["large", "small", "old"]
    as_operator.post(_url("change", key.pk), _fields(allowed_models=["old", "small"]))
    assert _stored().allowed_models == ["old", "small"]


def test_beside_each_limit_stands_what_is_used_of_it(as_operator: Client) -> None:
    key: Any = ApiKeyFactory(allowance__tokens_per_day=1000, allowance__concurrency=4)
    _reserve(key, 600)
    page = as_operator.get(_url("change", key.pk)).content.decode()
    assert "600 of 1,000 used (60 %)" in page
    assert "400 left · 600 of it reserved by what runs · resets" in page
    assert "1 of 4 used (25 %)" in page
    # Counted as well where there is no limit yet: whoever sets one sees what it meets.
    assert page.count("600 used, no limit") == 2
    assert "no limit, and not counted" in page


def test_whoever_only_looks_sees_the_limits_and_what_is_used_as_words(as_onlooker: Client) -> None:
    key: Any = ApiKeyFactory(
        allowed_lanes=["low"], allowed_networks=["192.0.2.0/24"], allowance__tokens_per_week=10
    )
    page = as_onlooker.get(_url("change", key.pk)).content.decode()
    for words in ("every model", "192.0.2.0/24", "Tokens a week", "0 of 10 used (0 %)", "10 left"):
        assert words in page
    assert 'name="tokens_per_week"' not in page
    assert 'name="allowed_networks"' not in page


def test_a_rotated_key_says_with_which_one_it_shares_its_limits(as_operator: Client) -> None:
    key: Any = ApiKeyFactory(allowance__tokens_per_day=1000)
    assert "this key alone" in as_operator.get(_url("change", key.pk)).content.decode()
    save(as_operator, _url("rotate", key.pk), {"overlap": 2})
    with every_tenant("test"):
        successor = key.rotated_to.get()
    page = as_operator.get(_url("change", key.pk)).content.decode()
    assert (
        f'this key and <a class="sb-link" href="{_url("change", successor.pk)}">sb_{successor.prefix}…'
        in page
    )


@pytest.mark.usefixtures("models")
def test_the_list_says_briefly_what_each_key_is_narrowed_to(as_operator: Client) -> None:
    ApiKeyFactory()
    ApiKeyFactory(
        allowed_lanes=["normal", "low"],
        allowed_models=["small"],
        allowed_networks=["192.0.2.0/24", "2001:db8::1"],
        allowance__tokens_per_day=0,
    )
    page = as_operator.get(_url("changelist")).content.decode()
    assert "normal, low; small; 2 networks; 1 limit" in page


def test_a_key_s_page_costs_as_much_with_limits_as_without(
    as_operator: Client, django_assert_max_num_queries: Any
) -> None:
    plain, limited = ApiKeyFactory(), ApiKeyFactory(allowance__tokens_per_day=5, allowance__concurrency=2)
    as_operator.get(_url("changelist"))
    with django_assert_max_num_queries(20) as few:
        as_operator.get(_url("change", plain.pk))
    with django_assert_max_num_queries(len(few)):
        as_operator.get(_url("change", limited.pk))


def test_what_was_used_in_a_window_that_has_passed_is_not_shown(as_operator: Client) -> None:
    key: Any = ApiKeyFactory(allowance__tokens_per_day=1000)
    long_ago = datetime(2020, 1, 1, tzinfo=UTC)
    with every_tenant("test"):
        BudgetWindow.objects.create(
            allowance=key.allowance,
            period="day",
            starts_at=long_ago,
            ends_at=long_ago + timedelta(days=1),
            used=700,
        )
    assert "0 of 1,000 used (0 %)" in as_operator.get(_url("change", key.pk)).content.decode()
