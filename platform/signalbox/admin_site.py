"""The admin's site: one way in, one scope, one content security policy, and a landing page that shows what runs now."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from csp.decorators import csp_replace
from django.apps import apps
from django.conf import settings
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.core.paginator import Paginator
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect
from django.template.response import SimpleTemplateResponse, TemplateResponse
from django.urls import reverse
from unfold.sites import UnfoldAdminSite

from accounts.audience import is_auditor_only, may_send, only_reads
from accounts.models import User
from accounts.tenancy import every_tenant
from signalbox.sign_in import SignOut

View = Callable[..., HttpResponseBase]

#: Rows that a search lists at most.
_MOST_RESULTS = 50


class SignalboxAdminSite(UnfoldAdminSite):  # type: ignore[misc]
    """For staff: operators may change what the domain's verbs allow, others may look (``accounts.audience``)."""

    site_title = site_header = "Signalbox"
    index_title = "Now"
    index_template = "admin/now.html"

    def admin_view(self, view: View, cacheable: bool = False) -> View:
        """``view`` for staff with a password of their own, where every tenant's rows may be seen.

        What somebody sends who is no operator is refused here, before any page sees it: a page that forgets to ask who
        it is changes nothing.
        """

        @wraps(view)
        def scoped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
            if isinstance(request.user, User) and request.user.must_change_password:
                return redirect("password")
            if not may_send(request.user, request.method, view):
                raise PermissionDenied
            with every_tenant("staff see the whole installation in the admin"):
                response = view(request, *args, **kwargs)
                # Templates query too, and would otherwise be rendered after the scope has ended.
                if isinstance(response, SimpleTemplateResponse) and not response.is_rendered:
                    response.render()
            return response

        guarded: View = super().admin_view(scoped, cacheable)
        return csp_replace(settings.ADMIN_CONTENT_SECURITY_POLICY)(guarded)

    def shows(self, request: HttpRequest, model: str) -> bool:
        """Whether the pages of ``model`` (app.model) are shown to who asks."""
        shown: bool = self._registry[apps.get_model(model)].has_view_permission(request)
        return shown

    def login(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """There is one page to sign in. Who is signed in and may not enter is told so, not asked again."""
        if request.user.is_authenticated and not self.has_permission(request):
            raise PermissionDenied
        index = reverse(f"{self.name}:index")
        if request.user.is_authenticated:
            return redirect(index)
        return redirect_to_login(request.GET.get("next", index), reverse("login"))

    @only_reads
    def logout(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponseBase:
        """The site's own sign-out, which also ends the user's chat sockets."""
        return SignOut.as_view()(request)

    def password_change(
        self, request: HttpRequest, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The site's own page, which goes through ``accounts.users``."""
        return redirect("password")

    def index(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """What is running now; the page asks for its changing part again and again while it is looked at.

        Auditors are led to what is theirs.
        """
        if is_auditor_only(request.user):
            return redirect(f"{self.name}:accounts_audit")
        response: TemplateResponse = super().index(request, extra_context)
        if request.headers.get("HX-Request"):
            response.template_name = "admin/now_panels.html"
        return response

    def app_index(
        self, request: HttpRequest, app_label: str, extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """The sidebar lists every page; a page per app would list some of them again."""
        return redirect(reverse(f"{self.name}:index"))

    def search(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Pages and rows by name. Answers are not cached: they show rows, and the cache holds plain values only."""
        term = request.GET.get("s", "").strip().lower()
        if not term:
            return HttpResponse()
        apps = self.get_app_list(request)
        rows = self._search_models(request, apps, term)[:_MOST_RESULTS]
        found = Paginator([*self._search_apps(apps, term), *rows], per_page=10 * _MOST_RESULTS)
        return TemplateResponse(
            request,
            "unfold/helpers/command_results.html",
            {"page_obj": found, "results": found.page(1), "page_counter": 0, "execution_time": 0},
            headers={"HX-Trigger": "search"},
        )
