"""Forms of a tenant's area whose answer is a secret: taken once, and the secret in that one answer only.

It is not in a URL, the session or a message. Sending the form again, as a browser does when the answer is reloaded,
makes no second secret.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django.forms import Form
from django.http import HttpRequest, HttpResponse

from accounts.form_tickets import TakenBefore, refuse_if_taken, taken_once, ticket_for
from accounts.refusals import ChangeRefused
from accounts.site.area import Area


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """A secret, whose it is, what to do with it, and where to go on."""

    title: str
    secret: str
    name: str
    meaning: Sequence[str]
    next_url: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """What is said to whoever sends such a form again."""

    title: str
    meaning: Sequence[str]
    next_url: str
    next_title: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """The page of such a form: the template that shows it, and what that needs."""

    template: str
    section: str
    form: Form
    again: Again
    context: dict[str, Any]


def ask_once(request: HttpRequest, area: Area, question: Question, make: Callable[[], Shown]) -> HttpResponse:
    """Show the form with a ticket; or take what was posted, ``make`` the secret, and show it."""
    form, section = question.form, question.section
    if request.method == "POST":
        try:
            refuse_if_taken(request)
            if form.is_valid():
                with taken_once(request):
                    shown = make()
                return area.page(request, "shown_once", {"section": section, "shown": shown})
        except TakenBefore:
            return area.page(request, "made_already", {"section": section, "again": question.again})
        except ChangeRefused as refusal:
            show_refusal(form, refusal)
    context = {**question.context, "section": section, "form": form, "ticket": ticket_for(request)}
    return area.page(request, question.template, context)


def show_refusal(form: Form, refusal: ChangeRefused) -> None:
    """Say in the form why a verb refused it, at the field that is at fault."""
    form.add_error(refusal.field if refusal.field in form.fields else None, refusal.message)


def posted(request: HttpRequest) -> Any:
    """What a form is made from: what was sent, or nothing yet."""
    return request.POST if request.method == "POST" else None
