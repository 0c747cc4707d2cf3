"""A tenant's calendar is of a place that every machine knows; one that was given otherwise may stay."""

from __future__ import annotations

import re
import struct
import zoneinfo
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.test import Client
from django.urls import reverse

from accounts import tenants
from accounts.models import AuditEvent, Tenant
from accounts.refusals import ChangeRefused
from accounts.time_zones import time_zones
from tests.factories import ACTOR, TenantFactory

NO_PLACES = ["Factory", "localtime", "posixrules", "posix/Europe/Berlin", "right/Europe/Berlin"]
#: A zone file that says UTC.
UTC = b"TZif" + bytes(16) + struct.pack(">6l", 0, 0, 0, 0, 1, 4) + bytes(6) + b"UTC\0"


@pytest.fixture(autouse=True)
def _a_machine_that_has_them_all(tmp_path: Path) -> Iterator[None]:
    for zone in ("Europe/Berlin", "UTC", *NO_PLACES):
        file = tmp_path / zone
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(UTC)
    before = zoneinfo.TZPATH
    zoneinfo.reset_tzpath([str(tmp_path)])
    zoneinfo.ZoneInfo.clear_cache()
    yield
    zoneinfo.reset_tzpath(before)
    zoneinfo.ZoneInfo.clear_cache()


def test_what_names_no_place_is_not_offered() -> None:
    assert {"Factory", "localtime"} <= zoneinfo.available_timezones(), "the machine has them"
    assert {"Europe/Berlin", "UTC"} <= time_zones()
    assert time_zones().isdisjoint(NO_PLACES)


def _offered(page: str) -> dict[str, bool]:
    """The choices of a tenant's form, and which is chosen."""
    select = re.search(r'<select name="time_zone".*?</select>', page, re.DOTALL)
    assert select is not None
    options = re.findall(r'<option value="([^"]+)"([^>]*)>', select[0])
    return {name: "selected" in attributes for name, attributes in options}


@pytest.mark.django_db
def test_the_form_offers_them_only_to_whom_they_were_given(as_operator: Client) -> None:
    offered = _offered(as_operator.get(reverse("admin:accounts_tenant_add")).content.decode())
    assert {"UTC", "Europe/Berlin"} <= offered.keys()
    assert offered.keys().isdisjoint(NO_PLACES)
    tenant = TenantFactory(time_zone="localtime")
    page = as_operator.get(reverse("admin:accounts_tenant_change", args=[tenant.pk])).content.decode()
    assert _offered(page)["localtime"]
    assert "Factory" not in _offered(page)


@pytest.mark.django_db
def test_none_is_given_one_and_who_has_one_keeps_it() -> None:
    tenant: Tenant = TenantFactory(time_zone="UTC")
    with pytest.raises(ChangeRefused, match="There is no time zone 'localtime'"):
        tenants.set_time_zone(tenant=tenant, time_zone="localtime", actor=ACTOR)
    with pytest.raises(ChangeRefused, match="There is no time zone 'Factory'"):
        tenants.create(name="Rail", slug="rail", time_zone="Factory", actor=ACTOR)
    had: Tenant = TenantFactory(time_zone="localtime")
    assert tenants.set_time_zone(tenant=had, time_zone="localtime", actor=ACTOR).time_zone == "localtime"
    assert not AuditEvent.objects.exists()
    moved = tenants.set_time_zone(tenant=had, time_zone="Europe/Berlin", actor=ACTOR)
    assert moved.time_zone == "Europe/Berlin"
