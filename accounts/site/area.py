"""The way into a tenant's area of the site: who may enter, as what, and in which scope and time zone the page is made.

Everything below ``/tenant/<slug>/`` goes through ``in_area``. A tenant that the user is no member of is not there
(404), whatever is asked of it; so is one that is closed, and so is everything of another tenant.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import wraps
from typing import Any, Final, cast
from zoneinfo import ZoneInfo

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseNotAllowed
from django.shortcuts import redirect, render
from django.utils import timezone

from accounts import permissions
from accounts.models import Role, Tenant, User
from accounts.permissions import Permission
from accounts.tenancy import tenant_scope
from signalbox.page_policy import strict

View = Callable[..., HttpResponse]

#: The methods of pages that are looked at, and of forms.
LOOK: Final = ("GET", "HEAD")
FORM: Final = (*LOOK, "POST")


@dataclass(frozen=True, slots=True)
class Area:
    """One tenant's area, as one of its members has it. ``zone``: what times are told and read in."""

    tenant: Tenant
    user: User
    role: Role
    zone: ZoneInfo

    @property
    def may_manage(self) -> bool:
        """Whether their role lets them decide on the tenant's keys and webhooks. An operator's power is the admin's."""
        return Permission.MANAGE_KEYS in permissions.permissions_of(operator=False, role=self.role)

    def page(self, request: HttpRequest, name: str, context: dict[str, Any]) -> HttpResponse:
        """The page that the template ``signalbox/tenant/<name>.html`` makes."""
        return render(request, f"signalbox/tenant/{name}.html", {"area": self, **context})


def for_user(view: View) -> View:
    """``view(request, user, …)`` for somebody who is signed in and has a password of their own."""

    @strict
    @login_required
    @wraps(view)
    def inside(request: HttpRequest, **arguments: Any) -> HttpResponse:
        user = cast(User, request.user)
        if user.must_change_password:
            return redirect("password")
        return view(request, user, **arguments)

    return cast(View, inside)


def in_area(methods: Collection[str] = LOOK, *, managing: bool = False) -> Callable[[View], View]:
    """A view of a tenant's area: it is called with the ``Area``, in the tenant's scope and time zone.

    ``managing``: only for members who may decide there; others are refused (403).
    """

    def decorate(view: View) -> View:
        @for_user
        @wraps(view)
        def inside(request: HttpRequest, user: User, slug: str, **arguments: Any) -> HttpResponse:
            area = _area(user, slug)
            if request.method not in methods:
                return HttpResponseNotAllowed(list(methods))
            if managing and not area.may_manage:
                raise PermissionDenied
            with tenant_scope(area.tenant.id), timezone.override(area.zone):
                return view(request, area, **arguments)

        inside.methods = tuple(methods)  # type: ignore[attr-defined]
        return inside

    return decorate


def _area(user: User, slug: str) -> Area:
    tenant = permissions.tenants_of(user).filter(slug=slug).first()
    role = permissions.role_in(user, tenant.id) if tenant else None
    if tenant is None or role is None:
        raise Http404("There is no such tenant among the user's.")
    return Area(tenant, user, role, ZoneInfo(tenant.time_zone))
