from __future__ import annotations

import json
from io import StringIO

import pytest
from django.core.management import call_command

from accounts.audit import verification
from accounts.authentication import authenticate_key
from accounts.models import AuditEvent, Lane, Membership, Tenant, User
from accounts.tenancy import every_tenant

pytestmark = pytest.mark.django_db


def _bootstrap() -> dict[str, object]:
    output = StringIO()
    call_command("bootstrap", "--json", stdout=output)
    result: dict[str, object] = json.loads(output.getvalue())
    return result


def test_a_fresh_installation_gets_an_operator_a_tenant_in_every_lane_and_a_working_key() -> None:
    result = _bootstrap()
    operator = User.objects.get()
    assert result["first_run"] is True
    assert operator.username == result["username"] == "admin"
    assert operator.is_superuser
    assert operator.must_change_password
    assert operator.check_password(str(result["one_time_password"]))
    principal = authenticate_key(str(result["api_key"]))
    assert principal.tenant_id == Tenant.objects.get(slug="default").id
    assert principal.scopes == {"inference", "read"}
    with every_tenant("test"):
        assert Membership.objects.get().role == "owner"
        lanes = Tenant.objects.get().entitlements.values_list("lane_id", flat=True)
        assert set(lanes) == set(Lane.objects.values_list("name", flat=True)) == {"high", "normal", "low"}


def test_a_second_run_changes_nothing_and_tells_no_secret() -> None:
    first = _bootstrap()
    events = AuditEvent.objects.count()
    second = _bootstrap()
    assert AuditEvent.objects.count() == events
    assert second["first_run"] is False
    assert second["api_key"] is None
    assert second["one_time_password"] is None
    assert second["api_key_prefix"] == first["api_key_prefix"]
    assert second["key_command"] == "manage.py key create --tenant default --name NAME"


def test_every_step_of_the_first_run_is_in_the_audit_chain() -> None:
    _bootstrap()
    actions = list(AuditEvent.objects.order_by("sequence").values_list("action", flat=True))
    assert actions == [
        "user.create",
        "tenant.create",
        *["entitlement.grant"] * 3,
        "membership.add",
        "api_key.create",
    ]
    assert verification.verify(from_scratch=True).fault is None


def test_the_operator_is_still_described_after_their_tenant_is_closed() -> None:
    _bootstrap()
    call_command("tenant", "close", "default", stdout=StringIO())
    assert _bootstrap()["api_key_prefix"] is None
