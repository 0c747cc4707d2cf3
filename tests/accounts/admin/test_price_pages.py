"""Prices in the admin: added, followed, and withdrawn before they hold; never changed."""

from __future__ import annotations

from datetime import timedelta
from decimal import Decimal
from typing import Any

import pytest
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from accounts.audit.reading import disclose
from accounts.models import AuditEvent, Lane, Price
from tests.factories import LanguageModelFactory
from tests.fixtures.admin import save

FORM = {
    "model": "org/model",
    "lane": "",
    "currency": "eur",
    "prompt": "0.15",
    "cached": "0.05",
    "completion": "0.6",
}


@pytest.fixture(autouse=True)
def _offered(_admin_pages: None) -> None:
    LanguageModelFactory(name="org/model")


def _url(name: str, *arguments: object) -> str:
    return reverse(f"admin:accounts_price_{name}", args=arguments)


def _price(**changes: Any) -> Price:
    values = {"model": "org/model", "currency": "EUR", "prompt": 1, "cached": 1, "completion": 1}
    return Price.objects.create(**{**values, "valid_from": timezone.now(), **changes})


def test_a_price_holds_from_now_on_unless_a_time_is_given(as_operator: Client) -> None:
    before = timezone.now()
    answer = save(as_operator, _url("add"), FORM)
    price = Price.objects.get()
    assert answer["Location"] == _url("change", price.pk)
    assert before <= price.valid_from <= timezone.now()
    assert (price.currency, price.prompt, price.lane) == ("EUR", Decimal("0.15"), None)
    event = AuditEvent.objects.get()
    assert (event.action, disclose(event).actor_name) == ("price.add", "operator")
    shown = as_operator.get(_url("change", price.pk)).content.decode()
    assert "Holds" in shown
    assert 'name="prompt"' not in shown


def test_what_is_wrong_with_a_price_is_said_at_its_field(as_operator: Client) -> None:
    wrong = [{"currency": "€"}, {"prompt": "-1"}, {"model": "gone"}, {"prompt": "1000001"}]
    for change in wrong:
        page = save(as_operator, _url("add"), {**FORM, **change})
        assert page.status_code == 200
        assert page.context["adminform"].form.errors.keys() == change.keys()
    assert not Price.objects.exists()


def test_the_list_says_which_price_holds(as_operator: Client) -> None:
    now = timezone.now()
    old = _price(valid_from=now - timedelta(days=2))
    held = _price(valid_from=now - timedelta(days=1))
    to_come = _price(valid_from=now + timedelta(days=1))
    of_lane = _price(valid_from=now - timedelta(days=3), lane=Lane.objects.get(name="high"))
    page = as_operator.get(_url("changelist"))
    model_admin = page.context["cl"].model_admin
    states = {row: model_admin.state_words(row) for row in (old, held, to_come, of_lane)}
    assert list(states.values()) == ["Followed", "Holds", "To come", "Holds"]
    assert "every lane" in page.content.decode()


def test_a_price_to_come_is_withdrawn_and_one_that_holds_is_not(as_operator: Client) -> None:
    to_come = _price(valid_from=timezone.now() + timedelta(days=1))
    held = _price()
    assert _url("withdraw", to_come.pk) in as_operator.get(_url("change", to_come.pk)).content.decode()
    assert _url("withdraw", held.pk) not in as_operator.get(_url("change", held.pk)).content.decode()
    assert as_operator.get(_url("withdraw", to_come.pk)).status_code == 200
    assert as_operator.post(_url("withdraw", to_come.pk))["Location"] == _url("changelist")
    assert "holds already" in as_operator.post(_url("withdraw", held.pk)).content.decode()
    assert Price.objects.get() == held
    assert [event.action for event in AuditEvent.objects.all()] == ["price.withdraw"]


def test_who_may_look_may_neither_add_nor_withdraw(as_onlooker: Client) -> None:
    to_come = _price(valid_from=timezone.now() + timedelta(days=1))
    assert as_onlooker.get(_url("changelist")).status_code == 200
    assert as_onlooker.post(_url("add"), FORM).status_code == 403
    assert as_onlooker.post(_url("withdraw", to_come.pk)).status_code == 403
    assert Price.objects.get() == to_come
