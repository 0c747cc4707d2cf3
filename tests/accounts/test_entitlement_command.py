from __future__ import annotations

from datetime import datetime
from io import StringIO
from zoneinfo import ZoneInfo

import pytest
from django.core.management import CommandError, call_command

from accounts.limits import Limits
from accounts.models import Approval, AuditEvent, Entitlement, Lane, Tenant
from accounts.tenancy import every_tenant
from tests.factories import EntitlementFactory, OperatorFactory, TenantFactory

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def rail() -> Tenant:
    return TenantFactory(slug="rail", time_zone="Asia/Seoul")


def run(*arguments: str) -> str:
    output = StringIO()
    call_command("entitlement", *arguments, stdout=output, stderr=StringIO())
    return output.getvalue().strip()


def the_one() -> Entitlement:
    with every_tenant("test"):
        found: Entitlement = Entitlement.objects.select_related("allowance").get()
    return found


def grant(*arguments: str) -> str:
    return run("grant", "--tenant", "rail", "--lane", "high", *arguments)


def test_a_lane_is_granted_for_a_time_of_the_tenants_own_calendar_changed_listed_and_ended() -> None:
    said = grant(
        *("--tokens-per-day", "100000", "--concurrency", "2", "--until", "2036-12-31", "--reason", "launch"),
        *("--step-down-to", "low", "--speculation", "off"),
    )
    granted = the_one()
    assert str(granted.id) in said
    assert granted.allowance.limits == Limits(tokens_per_day=100_000, concurrency=2)
    assert granted.ends_at == datetime(2036, 12, 31, tzinfo=ZoneInfo("Asia/Seoul"))
    assert (granted.step_down_to_id, granted.on_exhausted, granted.speculation) == ("low", "step_down", False)
    listed = run("list", "--tenant", "rail")
    assert "temporary until 2036-12-30 15:00Z" in listed
    assert "tokens_per_day=100000 concurrency=2" in listed

    run("change", str(granted.id), "--tokens-per-day", "none", "--until", "none", "--step-down-to", "none")
    changed = the_one()
    assert changed.allowance.limits == Limits(concurrency=2)
    assert (changed.ends_at, changed.step_down_to_id, changed.on_exhausted) == (None, None, "refuse")
    assert (changed.reason, changed.speculation) == ("launch", False)

    run("end", str(granted.id))
    assert the_one().ended_at is not None
    assert "There is no such entitlement" in run("list")
    assert "ended" in run("list", "--all")
    actors = {event.actor_name for event in AuditEvent.objects.all()}
    assert actors == {f"manage.py entitlement {verb}" for verb in ("grant", "change", "end")}


@pytest.mark.parametrize(("verb", "approval"), [("approve", "approved"), ("refuse", "refused")])
def test_a_large_one_waits_for_another_operator(verb: str, approval: str) -> None:
    Lane.objects.filter(name="high").update(approval_above_tokens=10)
    for name in ("ada", "brunel"):
        OperatorFactory(username=name)
    with pytest.raises(CommandError, match="say who asks for it"):
        grant()
    said = grant("--by", "ada")
    requested = the_one()
    assert f"manage.py entitlement approve {requested.id} --by USER" in said
    assert str(requested.id) in run("list", "--waiting")
    with pytest.raises(CommandError, match="another one than whoever asked"):
        run(verb, str(requested.id), "--by", "ada", "--reason", "x")
    run(verb, str(requested.id), "--by", "brunel", "--reason", "as agreed")
    assert the_one().approval == Approval(approval)
    assert "There is no such" in run("list", "--waiting")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["grant", "--tenant", "nowhere", "--lane", "high"], "no tenant 'nowhere'"),
        (["grant", "--tenant", "rail", "--lane", "express"], "no lane 'express'. There are: high"),
        (["grant", "--tenant", "rail", "--lane", "high", "--by", "nobody"], "no user 'nobody'"),
        (["grant", "--tenant", "rail", "--lane", "high", "--until", "soon"], "neither a date"),
        (
            ["grant", "--tenant", "rail", "--lane", "high", "--until", "2036-02-30"],
            "no such time|neither a date",
        ),
        (["grant", "--tenant", "rail", "--lane", "high", "--until", "2020-01-01"], "over already"),
        (
            ["grant", "--tenant", "rail", "--lane", "high", "--tokens-per-day", "many"],
            "neither a whole number",
        ),
        (["grant", "--tenant", "rail", "--lane", "low", "--step-down-to", "high"], "not lower than low"),
        (["end", "nothing"], "`manage.py entitlement list --all` prints them"),
        (["approve", "00000000-0000-4000-8000-000000000000", "--by", "x"], "no entitlement"),
    ],
)
def test_a_mistake_is_named_with_what_to_do(arguments: list[str], said: str) -> None:
    with pytest.raises(CommandError, match=said):
        run(*arguments)
    assert not AuditEvent.objects.exists()


def test_what_does_not_wait_is_not_decided() -> None:
    OperatorFactory(username="ada")
    standing = EntitlementFactory()
    with pytest.raises(CommandError, match="does not wait for approval"):
        run("approve", str(standing.id), "--by", "ada")
