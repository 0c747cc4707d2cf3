"""A tenant's keys: looked at by its members, made, changed, rotated and revoked by its owners and admins."""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db.models import QuerySet
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils import timezone

from accounts import key_narrowing, keys
from accounts.actors import actor_of
from accounts.authentication import refusal_of
from accounts.consumption import Consumption
from accounts.consumption_lists import read_limited
from accounts.key_words import default_lane_of, key_state, scopes_of
from accounts.keys import IssuedKey
from accounts.models import ApiKey
from accounts.refusals import ChangeRefused
from accounts.site.area import FORM, Area, in_area
from accounts.site.key_forms import KeyForm, RotationForm, may_handle
from accounts.site.once import Again, Question, Shown, ask_once, posted, show_refusal

_SECTION = "keys"
_NOT_AGAIN = "The same form came again, as when a page is reloaded. No second key was made."
_LOST = "The key's text was shown once and cannot be shown again: if it is lost, "


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A key as its page shows it. ``limits``: those that are set, and where they stand."""

    key: ApiKey
    state: str
    state_words: str
    works: bool
    scopes: str
    default_lane: str
    lanes: str
    models: str
    networks: str
    limits: tuple[Consumption, ...]


@in_area()
def key_list(request: HttpRequest, area: Area) -> HttpResponse:
    """All keys of the tenant, those that work apart from the others."""
    rows = _rows(ApiKey.objects.all())
    working = [row for row in rows if row.works]
    ended = [row for row in rows if not row.works]
    return area.page(request, "keys", {"section": _SECTION, "working": working, "ended": ended})


@in_area(FORM, managing=True)
def new_key(request: HttpRequest, area: Area) -> HttpResponse:
    """Make a key, and show its text once."""
    form = KeyForm(posted(request), tenant=area.tenant, role=area.role)

    def make() -> Shown:
        issued = keys.create(
            tenant=area.tenant, **form.rights(), created_by=area.user, actor=actor_of(request)
        )
        return _shown(area, issued)

    again = Again(
        title="This key was made already",
        meaning=[_NOT_AGAIN, f"{_LOST}open the key and rotate it."],
        next_url=reverse("tenant-keys", args=[area.tenant.slug]),
        next_title="To the keys",
    )
    question = Question(template="key_new", section=_SECTION, form=form, again=again, context={})
    return ask_once(request, area, question, make)


@in_area(FORM)
def one_key(request: HttpRequest, area: Area, key_id: UUID) -> HttpResponse:
    """A key: what it may do, and where its limits stand. Whoever may, changes it here."""
    key = _key(key_id)
    within_reach = area.may_manage and may_handle(area.role, key)
    form = None
    if within_reach and refusal_of(key, timezone.now()) is None:
        form = KeyForm(posted(request), tenant=area.tenant, role=area.role, key=key)
    if request.method == "POST":
        if form is None:
            raise PermissionDenied
        if form.is_valid():
            try:
                key = keys.change(key=key, **form.rights(), actor=actor_of(request))
            except ChangeRefused as refusal:
                show_refusal(form, refusal)
            else:
                messages.success(request, f"{key.name} is changed.")
                return redirect(_url("tenant-key", area, key))
    [row] = _rows(ApiKey.objects.filter(id=key.id))
    return area.page(
        request,
        "key",
        {
            "section": _SECTION,
            "row": row,
            "form": form,
            "may_revoke": area.may_manage and row.works,
            "out_of_reach": area.may_manage and not within_reach,
            "successor": key.rotated_to.order_by("-created_at").first(),
        },
    )


@in_area(FORM, managing=True)
def rotate_key(request: HttpRequest, area: Area, key_id: UUID) -> HttpResponse:
    """Give a key a successor, and show that one's text once."""
    key = _key(key_id)
    if not may_handle(area.role, key):
        raise PermissionDenied
    form = RotationForm(posted(request))

    def rotate() -> Shown:
        issued = keys.rotate(key=key, overlap=form.length(), created_by=area.user, actor=actor_of(request))
        return _shown(area, issued)

    again = Again(
        title="The successor was made already",
        meaning=[_NOT_AGAIN, f"{_LOST}rotate {key.name} again."],
        next_url=_url("tenant-key", area, key),
        next_title=f"To {key.name}",
    )
    question = Question(template="key_rotate", section=_SECTION, form=form, again=again, context={"key": key})
    return ask_once(request, area, question, rotate)


@in_area(FORM, managing=True)
def revoke_key(request: HttpRequest, area: Area, key_id: UUID) -> HttpResponse:
    """Ask, then end a key at once."""
    key = _key(key_id)
    if request.method == "POST":
        keys.revoke(key=key, actor=actor_of(request))
        messages.success(request, f"{key.name} is revoked.")
        return redirect("tenant-keys", area.tenant.slug)
    return area.page(request, "key_revoke", {"section": _SECTION, "key": key})


def _shown(area: Area, issued: IssuedKey) -> Shown:
    return Shown(
        title="The key is ready",
        secret=issued.raw,
        name=f"{issued.key.name}, for {area.tenant.name}",
        meaning=[
            "This is the only time that it is shown. Keep it in the application's secret store now.",
            "Later it is known by its beginning only: if it is lost, rotate it or make a new one.",
        ],
        next_url=_url("tenant-key", area, issued.key),
    )


def _url(name: str, area: Area, key: ApiKey) -> str:
    return reverse(name, args=[area.tenant.slug, key.id])


def _key(key_id: UUID) -> ApiKey:
    key = ApiKey.objects.select_related("tenant", "allowance").filter(id=key_id).first()
    if key is None:
        raise Http404("The tenant has no such key.")
    return key


def _rows(found: QuerySet[ApiKey]) -> list[KeyRow]:
    now = timezone.now()
    rows = list(found.select_related("tenant", "allowance__tenant", "created_by"))
    limits = read_limited([key.allowance for key in rows], now)
    return [
        KeyRow(
            key=key,
            state=key_state(key)[0],
            state_words=key_state(key)[1],
            works=refusal_of(key, now) is None,
            scopes=scopes_of(key),
            default_lane=default_lane_of(key),
            lanes=key_narrowing.lanes_of(key),
            models=key_narrowing.models_of(key),
            networks=key_narrowing.networks_of(key),
            limits=limits[key.allowance_id],
        )
        for key in rows
    ]
