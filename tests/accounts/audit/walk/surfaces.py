"""Every place where something can be changed: the admin's, the pages', the API's, the commands', the tasks'."""

from __future__ import annotations

from argparse import ArgumentParser, _SubParsersAction
from collections.abc import Iterator
from typing import Any, Final

from django.contrib import admin
from django.core.management import get_commands, load_command_class
from django.test import RequestFactory
from django.urls import URLPattern, URLResolver

from accounts.models import User
from inference.api import frames
from inference.api.resource import endpoints_of
from inference.api.urls import urlpatterns as api_urlpatterns
from signalbox.celery import app as celery
from signalbox.urls import urlpatterns

_OURS: Final = ("accounts", "inference", "signalbox")
_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
#: What a page of the admin has for every model; whether it takes anything is asked of its permissions.
_USUAL: Final = ("changelist", "add", "change", "delete", "history")


def every_surface() -> list[str]:
    """All of them, each once, by names that say where they are."""
    found = [*admin_surfaces(), *page_surfaces(), *api_surfaces(), *command_surfaces(), *task_surfaces()]
    return sorted({*found, *(f"frame: {name}" for name in frames._FRAMES)})


def admin_surfaces() -> Iterator[str]:
    """Forms, rows below forms, actions and pages of its own that the admin offers to an operator."""
    request: Any = RequestFactory().get("/")
    request.user = User(username="operator", is_staff=True, is_superuser=True, is_active=True)
    of_pages: set[str] = set()
    for page in admin.site._registry.values():
        name = f"{page.opts.app_label}_{page.opts.model_name}"
        may = {
            "add": page.has_add_permission(request),
            "change": page.has_change_permission(request),
            "delete": page.has_delete_permission(request),
        }
        yield from (f"admin: {name}_{verb}" for verb, allowed in may.items() if allowed)
        if may["change"] and page.list_editable:
            yield f"admin: {name} list"
        yield from (f"admin: {name} action {action}" for action in page.get_actions(request))
        for inline_class in page.inlines:
            inline = inline_class(page.model, admin.site)
            if (
                inline.has_add_permission(request, None)
                or inline.has_change_permission(request, None)
                or inline.has_delete_permission(request, None)
            ):
                yield f"admin: {name} rows {inline.opts.model_name}"
        of_pages |= {f"{name}_{usual}" for usual in _USUAL}
        for pattern in page.get_urls():
            if pattern.name and pattern.name not in of_pages:
                yield f"admin: {pattern.name}"
    yield from (
        f"admin: {pattern.name}"
        for pattern in admin.site.get_urls()
        if isinstance(pattern, URLPattern) and pattern.name
    )


def page_surfaces() -> Iterator[str]:
    """The site's other routes, with each method that they take and that may change something."""
    for route, view in _routes(urlpatterns):
        if route.startswith(("^v1", "admin")):
            continue
        yield from (f"page: {method} /{route}" for method in sorted(_methods_of(view) - _SAFE))
        if route.rstrip("/").endswith("csv"):
            # It changes nothing but is an export, and told from other pages by its ending.
            yield f"page: GET /{route}"


def api_surfaces() -> Iterator[str]:
    for pattern in api_urlpatterns:
        for endpoint in endpoints_of(pattern.callback):
            if endpoint.method not in _SAFE:
                yield f"api: {endpoint.method} /v1/{pattern.pattern}"


def command_surfaces() -> Iterator[str]:
    """Of our own applications; those that come with Django and write past the audit are refused by ours."""
    for name, app in get_commands().items():
        if app not in _OURS:
            continue
        parser = load_command_class(app, name).create_parser("manage.py", name)
        verbs = list(_verbs_of(parser))
        yield from (f"manage.py {name} {verb}" for verb in verbs)
        if not verbs:
            yield f"manage.py {name}"


def task_surfaces() -> Iterator[str]:
    celery.autodiscover_tasks(_OURS, force=True)
    yield from (f"task: {name}" for name in celery.tasks if name.startswith(_OURS))


def _verbs_of(parser: ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, _SubParsersAction):
            for name, below in action.choices.items():
                deeper = list(_verbs_of(below))
                yield from (f"{name} {verb}" for verb in deeper)
                if not deeper:
                    yield name


def _routes(patterns: list[Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for pattern in patterns:
        route = f"{before}{pattern.pattern}"
        if isinstance(pattern, URLResolver):
            yield from _routes(pattern.url_patterns, route)
        else:
            yield route, pattern.callback


def _methods_of(view: Any) -> set[str]:
    """As the view declares them; one that declares none may take anything that a form sends."""
    declared = getattr(view, "methods", None)
    if declared is not None:
        return set(declared)
    if hasattr(view, "view_class"):
        # Of the methods that browsers' forms and our scripts have; Django's views take PUT as they take POST.
        taken = {"post": "POST", "patch": "PATCH", "delete": "DELETE"}
        return {method for name, method in taken.items() if hasattr(view.view_class, name)}
    return {"POST"}
