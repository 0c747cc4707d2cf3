"""Ways of asking that several of these tests need."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.test import RequestFactory

from accounts.authentication import authenticate_key
from accounts.models import ApiKey
from accounts.tenancy import every_tenant
from inference.api.attachment import Attachment
from inference.api.endpoint import Call
from inference.api.limit_headers import CallLimits
from tests.inference.api.asgi_client import AsgiClient

PROJECTS = "/v1/organization/projects"


def project(tenant: Any) -> str:
    return f"{PROJECTS}/proj_{tenant.id.hex}"


async def every_page(client: AsgiClient, path: str, *, limit: int) -> list[dict[str, Any]]:
    """The entries of a list, read page by page."""
    found: list[dict[str, Any]] = []
    after = ""
    while True:
        page = (await client.get(f"{path}{'&' if '?' in path else '?'}limit={limit}{after}")).json()
        assert page["object"] == "list", page
        assert len(page["data"]) <= limit
        ends = (page["data"][0]["id"], page["data"][-1]["id"]) if page["data"] else (None, None)
        assert (page["first_id"], page["last_id"]) == ends
        found += page["data"]
        if not page["has_more"]:
            return found
        after = f"&after={page['last_id']}"


def call_of(key: str, path: str) -> Call:
    """A request as an endpoint's function gets it, to call that in the test's own thread."""
    return Call(RequestFactory().get(path), authenticate_key(key), Attachment(), CallLimits())


def stored_key(id_: UUID) -> ApiKey:
    """A key's row as it is now."""
    with every_tenant("the test looks at what was stored"):
        key: ApiKey = ApiKey.objects.select_related("allowance").get(id=id_)
    return key


def id_of(name: str) -> UUID:
    """The id behind ``proj_…``, ``key_…`` or ``svc_acct_…``."""
    return UUID(name.rpartition("_")[2])
