"""Who belongs to a tenant, to look at: roles are given and taken by operators."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from accounts.models import Membership, Role
from accounts.site.area import Area, in_area

_ORDER = {role.value: place for place, role in enumerate(Role)}


@in_area()
def member_list(request: HttpRequest, area: Area) -> HttpResponse:
    """The live members, from owners to viewers."""
    members = list(Membership.objects.filter(ended_at=None).select_related("user").order_by("user__username"))
    members.sort(key=lambda member: _ORDER[member.role])
    return area.page(request, "members", {"section": "members", "members": members})
