from __future__ import annotations

from decimal import Decimal
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from accounts.models import AuditEvent, Price

pytestmark = pytest.mark.django_db

ADD = ("add", "org/model", "--currency", "eur", "--prompt", "0.15", "--completion", "0.6")


def run(*arguments: str) -> str:
    output = StringIO()
    call_command("price", *arguments, stdout=output, stderr=StringIO())
    return output.getvalue().strip()


def test_a_price_is_set_and_listed() -> None:
    assert "no price" in run("list")
    assert "every lane" in run(*ADD)
    run(*ADD, "--lane", "high", "--cached", "0.01", "--from", "2099-01-01T00:00+09:00")
    every, high = Price.objects.order_by("valid_from")
    assert (every.cached, every.lane_id, high.cached, high.lane_id) == (
        Decimal("0.15"),
        None,
        Decimal("0.01"),
        "high",
    )
    listed = run("list")
    assert "2098-12-31 15:00Z" in listed
    assert listed.count("EUR") == 2
    assert AuditEvent.objects.filter(action="price.add").count() == 2


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--lane", "express"), "no lane 'express'. There are: high"),
        (("--cached", "cheap"), "this is 'cheap'"),
        (("--from", "tomorrow"), "this is 'tomorrow'"),
        (("--from", "2099-13-01T00:00"), "this is '2099-13-01T00:00'"),
        (("--from", "2001-01-01T00:00Z"), "cannot begin in the past"),
    ],
)
def test_what_makes_no_sense_is_said(more: tuple[str, ...], said: str) -> None:
    with pytest.raises(CommandError, match=said.replace("?", r"\?")):
        run(*ADD, *more)
    assert not Price.objects.exists()
