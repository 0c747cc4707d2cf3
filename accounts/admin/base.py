"""What every page of the admin has in common.

Rows are written by the domain's verbs only, with the signed-in user as actor: Django's own ways to save, delete
and log are closed here, so that a page that forgets to name its verb fails, and never writes past the audit.
Operators (superusers) may change, other staff may look, auditors at what is theirs (``accounts.audience``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn

from django import forms
from django.contrib import messages
from django.contrib.admin import ShowFacets
from django.contrib.admin.utils import unquote
from django.contrib.admin.widgets import RelatedFieldWidgetWrapper
from django.core.exceptions import PermissionDenied
from django.db.models import Model, QuerySet
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.template.response import TemplateResponse
from django.urls import reverse
from django.utils.text import capfirst
from unfold.admin import ModelAdmin, TabularInline
from unfold.paginator import InfinitePaginator

from accounts.admin.trail import trail_of
from accounts.audience import Audience, sees
from accounts.form_tickets import TakenBefore, refuse_if_taken, taken_once, ticket_for
from accounts.formatting import EMPTY
from accounts.refusals import ChangeRefused

#: Rows of each kind that the search over all pages lists at most.
SEARCHED_ROWS: Final = 50
#: Sent along with an answer: the version of what was shown when it was asked for.
VERSION_FIELD: Final = "seen"


@dataclass(frozen=True, slots=True, kw_only=True)
class AlreadyMade:
    """What is said to whoever sends a form again whose answer was a secret."""

    title: str
    meaning: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What an operator is asked before something is done: what it means, and what to fill in."""

    title: str
    meaning: Sequence[str]
    submit: str
    form: type[forms.Form] = forms.Form
    danger: bool = False
    #: Where the answer is a secret: what a repeated POST is told, which then does nothing.
    already_made: AlreadyMade | None = None
    #: What it is decided by, for a template that shows it below the question, and the version of that.
    template: str = "admin/question.html"
    shown: Mapping[str, Any] = field(default_factory=dict)
    version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownOnce:
    """A secret that one answer shows and nothing keeps: not the URL, the session, a message or a cookie."""

    title: str
    secret: str
    name: str
    meaning: Sequence[str]
    next_url: str
    next_title: str


class SiteModelAdmin(ModelAdmin):  # type: ignore[misc]
    """Base of all pages. Subclasses say what may be added and changed, and name the verb in ``save_model``."""

    #: Who sees it.
    audience = Audience.STAFF
    may_add = False
    may_change = False
    #: Where adding shows a secret: what a repeated POST is told. ``save_model`` then writes in ``taken_once``.
    already_made: AlreadyMade | None = None
    change_form_before_template = "admin/ticket.html"
    list_per_page = 50
    compressed_fields = True
    warn_unsaved_form = True
    list_filter_submit = False
    show_facets = ShowFacets.NEVER
    empty_value_display = EMPTY

    def has_module_permission(self, request: HttpRequest) -> bool:
        return sees(request.user, self.audience)

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return sees(request.user, self.audience)

    def has_operate_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Whether the actions that name the permission ``operate`` may be taken."""
        return sees(request.user, self.audience) and request.user.is_superuser

    def has_add_permission(self, request: HttpRequest) -> bool:
        return self.may_add and self.has_operate_permission(request)

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return self.may_change and self.has_operate_permission(request)

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> Any:
        """The list, under the name that the menu has for it."""
        context = {"title": capfirst(self.opts.verbose_name_plural), **(extra_context or {})}
        return super().changelist_view(request, context)

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        """A verb's refusal is shown in the form, at the field that is at fault."""
        context = {
            "title": capfirst(self.opts.verbose_name if object_id else f"new {self.opts.verbose_name}"),
            "show_save_and_add_another": False,
            "show_save_and_continue": False,
            **(extra_context or {}),
        }
        once = self.already_made if object_id is None else None
        if once:
            context["ticket"] = ticket_for(request)
        try:
            if once:
                refuse_if_taken(request)
            return super().changeform_view(request, object_id, form_url, context)
        except ChangeRefused as refusal:
            request.refusal = refusal  # type: ignore[attr-defined]
            return super().changeform_view(request, object_id, form_url, context)
        except TakenBefore:
            if once is None:
                raise
            return self._say_already_made(request, once)

    def formfield_for_dbfield(self, db_field: Any, request: HttpRequest, **kwargs: Any) -> Any:
        """Fields without Django's pop-ups to add and change what they point to: those have pages of their own."""
        field = super().formfield_for_dbfield(db_field, request, **kwargs)
        if field is not None and isinstance(field.widget, RelatedFieldWidgetWrapper):
            field.widget = field.widget.widget
        return field

    def get_form(
        self, request: HttpRequest, obj: Model | None = None, change: bool = False, **kw: Any
    ) -> Any:
        form: Any = super().get_form(request, obj, change, **kw)
        refusal: ChangeRefused | None = getattr(request, "refusal", None)
        return form if refusal is None else _with_refusal(form, refusal)

    def save_model(self, request: HttpRequest, obj: Any, form: Any, change: bool) -> None:
        raise NotImplementedError(f"{type(self).__name__} names no verb that writes {self.model.__name__}")

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """Nothing: what belongs together is written by one verb."""

    def delete_model(self, request: HttpRequest, obj: Any) -> NoReturn:
        raise NotImplementedError("nothing is deleted in the admin")

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Any]) -> NoReturn:
        raise NotImplementedError("nothing is deleted in the admin")

    def response_add(
        self, request: HttpRequest, obj: Any, post_url_continue: str | None = None
    ) -> HttpResponse:
        """The new row's page says that it is there."""
        messages.success(request, f"Made: {obj}")
        return redirect(self.url_of(obj))

    def response_change(self, request: HttpRequest, obj: Any) -> HttpResponse:
        """The row's page says that it is changed."""
        messages.success(request, f"Saved: {obj}")
        return redirect(self.url_of(obj))

    def construct_change_message(
        self, request: HttpRequest, form: Any, formsets: Any, add: bool = False
    ) -> list[dict[str, Any]]:
        """Nothing: the audit holds it already."""
        return []

    def log_addition(self, request: HttpRequest, obj: Any, message: Any) -> None:
        """Nothing: the audit holds it already."""

    def log_change(self, request: HttpRequest, obj: Any, message: Any) -> None:
        """Nothing: the audit holds it already."""

    def history_view(
        self, request: HttpRequest, object_id: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """What the audit says about the row: for who may read the audit."""
        if not (self.has_view_permission(request) and sees(request.user, Audience.AUDITORS)):
            raise PermissionDenied
        obj = self.object_or_404(request, object_id)
        context = {
            **self.admin_site.each_context(request),
            "title": f"Audit of {obj}",
            "opts": self.opts,
            "object": obj,
            "events": trail_of(request, obj),
            **(extra_context or {}),
        }
        return TemplateResponse(request, "admin/audit_trail.html", context)

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        found, duplicates = super().get_search_results(request, queryset, search_term)
        return self.few_for_search(request, found), duplicates

    def few_for_search(self, request: HttpRequest, found: QuerySet[Any]) -> QuerySet[Any]:
        """``found``, or its first rows for the search over all pages, which lists no more and would read them all."""
        match = request.resolver_match
        return found[:SEARCHED_ROWS] if match is not None and match.url_name == "search" else found

    def object_or_404(self, request: HttpRequest, object_id: str) -> Any:
        """The row that a URL names."""
        obj = self.get_object(request, unquote(object_id))
        if obj is None:
            raise Http404(f"There is no {self.opts.verbose_name} {object_id}.")
        return obj

    def url_of(self, obj: Model) -> str:
        """The row's page."""
        return reverse(
            f"{self.admin_site.name}:{obj._meta.app_label}_{obj._meta.model_name}_change", args=(obj.pk,)
        )

    def list_url(self) -> str:
        """The page that lists all rows."""
        return reverse(f"{self.admin_site.name}:{self.opts.app_label}_{self.opts.model_name}_changelist")

    def ask(
        self,
        request: HttpRequest,
        obj: Any,
        question: Question,
        do: Callable[[dict[str, Any]], HttpResponseBase | str],
    ) -> HttpResponseBase:
        """Ask first, then ``do`` it with the form's values: GET shows ``question``, POST answers it.

        ``do`` returns what to tell the operator, or the answer itself. A refusal is shown in the form.
        """
        form = question.form(request.POST if request.method == "POST" else None)
        once = question.already_made
        if request.method == "POST" and form.is_valid():
            try:
                with taken_once(request) if once else nullcontext():
                    done = do(form.cleaned_data)
            except TakenBefore:
                if once is None:
                    raise
                return self._say_already_made(request, once, obj)
            except ChangeRefused as refusal:
                form.add_error(refusal.field if refusal.field in form.fields else None, refusal.message)
            else:
                if isinstance(done, HttpResponseBase):
                    return done
                messages.success(request, done)
                return redirect(self.url_of(obj))
        context = {
            **self.admin_site.each_context(request),
            "title": question.title,
            "question": question,
            "version_field": VERSION_FIELD,
            "opts": self.opts,
            "object": obj,
            "form": form,
            "ticket": ticket_for(request) if once else None,
            "back_url": self.url_of(obj),
        }
        return TemplateResponse(request, question.template, context)

    def show_once(self, request: HttpRequest, shown: ShownOnce) -> HttpResponse:
        """Answer a POST with a secret. Django's admin marks every answer as one that nothing may store."""
        context = {
            **self.admin_site.each_context(request),
            "title": shown.title,
            "shown": shown,
            "opts": self.opts,
        }
        return TemplateResponse(request, "admin/shown_once.html", context)

    def _say_already_made(self, request: HttpRequest, once: AlreadyMade, obj: Any = None) -> HttpResponse:
        """Answer a repeated POST: ``obj`` is what it was about, None where it made a new row."""
        context = {
            **self.admin_site.each_context(request),
            "title": once.title,
            "already_made": once,
            "opts": self.opts,
            "object": obj,
            "next_url": self.list_url() if obj is None else self.url_of(obj),
        }
        return TemplateResponse(request, "admin/already_made.html", context)


class RecordAdmin(SiteModelAdmin):
    """Of what is written once by the system and read only. There may be millions of rows: they are not counted."""

    paginator = InfinitePaginator
    show_full_result_count = False


class LookInline(TabularInline):  # type: ignore[misc]
    """Rows of another kind on a row's page, to look at; each leads to its own page."""

    #: Who sees them.
    audience = Audience.STAFF_AND_AUDITORS
    extra = 0
    tab = True
    show_change_link = True
    hide_title = True

    def has_view_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return sees(request.user, self.audience)

    def has_add_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False


def _with_refusal(form: Any, refusal: ChangeRefused) -> Any:
    class RefusedForm(form):  # type: ignore[misc]
        def full_clean(self) -> None:
            super().full_clean()
            self.add_error(refusal.field if refusal.field in self.fields else None, refusal.message)

    return RefusedForm
