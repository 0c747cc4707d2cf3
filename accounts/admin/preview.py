"""Forms whose effect is shown before they are saved: filled in, looked at, then saved or taken up again.

What is shown is what the verb itself did: it ran in the request's transaction, which is rolled back before the page is
made. So a preview refuses what saving would refuse, and shows what saving would write. Saving sends the same values
again with the version of what they were decided by, and is refused where that is no longer so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from django.contrib.admin.utils import unquote
from django.http import HttpRequest, HttpResponse
from django.template.response import TemplateResponse

from accounts.admin.base import VERSION_FIELD, SiteModelAdmin

#: The button that leads from a preview back into its form.
EDIT_BUTTON: Final = "_edit"
_NOT_THE_FORMS: Final = frozenset({"csrfmiddlewaretoken", "_save", EDIT_BUTTON, VERSION_FIELD})


class Previewed(Exception):
    """A valid form would be saved: what was tried is rolled back, and its effect is shown first."""

    def __init__(self, plan: Any, version: str) -> None:
        super().__init__("shown before it is saved")
        self.plan = plan
        self.version = version


class PreviewedAdmin(SiteModelAdmin):
    """Base of pages with a preview: ``save_model`` raises ``Previewed`` as long as there is no ``version_seen``."""

    preview_template = ""

    def preview_context(self, request: HttpRequest, plan: Any) -> dict[str, Any]:
        """What the preview's template shows of ``plan``: made when nothing of what was tried is left."""
        raise NotImplementedError(f"{type(self).__name__} does not say what its preview shows")

    def version_seen(self, request: HttpRequest) -> str | None:
        """The version of what a preview showed that is being saved; None: nothing was looked at yet."""
        version: str | None = request.POST.get(VERSION_FIELD)
        return version

    def changeform_view(
        self,
        request: HttpRequest,
        object_id: str | None = None,
        form_url: str = "",
        extra_context: dict[str, Any] | None = None,
    ) -> Any:
        context = {"save_title": "Show what it does", **(extra_context or {})}
        try:
            return super().changeform_view(request, object_id, form_url, context)
        except Previewed as previewed:
            return self._show(request, object_id, previewed)

    def get_form(self, request: HttpRequest, obj: Any = None, change: bool = False, **kw: Any) -> Any:
        form: Any = super().get_form(request, obj, change, **kw)
        return _taken_up_again(form) if EDIT_BUTTON in request.POST else form

    def _show(self, request: HttpRequest, object_id: str | None, previewed: Previewed) -> HttpResponse:
        obj = self.get_object(request, unquote(object_id)) if object_id is not None else None
        context = {
            **self.admin_site.each_context(request),
            "title": "Before it is saved",
            "opts": self.opts,
            "object": obj,
            "sent": list(_sent(request)),
            "version_field": VERSION_FIELD,
            "version": previewed.version,
            "edit_button": EDIT_BUTTON,
            **self.preview_context(request, previewed.plan),
        }
        return TemplateResponse(request, self.preview_template, context)


def _sent(request: HttpRequest) -> Iterator[tuple[str, str]]:
    """The form's own values, to be sent again."""
    for name, values in request.POST.lists():
        if name not in _NOT_THE_FORMS:
            for value in values:
                yield name, value


def _taken_up_again(form: Any) -> Any:
    class Unsaved(form):  # type: ignore[misc]
        def is_valid(self) -> bool:
            """Never: it is only shown again with what was filled in."""
            super().is_valid()
            return False

    return Unsaved
