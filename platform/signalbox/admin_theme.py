"""How the admin looks, and what its sidebar leads to: django-unfold's settings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse_lazy


def _static(path: str) -> Any:
    return lambda request: static(path)


def _shown(model: str) -> Callable[[HttpRequest], bool]:
    """Whether the pages of ``model`` (app_model) are shown to who asks."""

    def shown(request: HttpRequest) -> bool:
        # Settings are read, and this module with them, before there are apps.
        from django.contrib import admin

        return admin.site.shows(request, model.replace("_", "."))  # type: ignore[attr-defined, no-any-return]

    return shown


def _page(title: str, icon: str, model: str) -> dict[str, Any]:
    return {
        "title": title,
        "icon": icon,
        "link": reverse_lazy(f"admin:{model}_changelist"),
        "permission": _shown(model),
    }


def _starts(name: str) -> Callable[[HttpRequest], bool]:
    """Whether the request is for the page ``name`` or one below it."""
    return lambda request: request.path.startswith(str(reverse_lazy(name)))


def _is_events(request: HttpRequest) -> bool:
    """The pages about the audit as a whole lie below its events, and have entries of their own."""
    events = str(reverse_lazy("admin:accounts_auditevent_changelist"))
    return request.path.startswith(events) and not _is_audit(request)


def _is_audit(request: HttpRequest) -> bool:
    pages = ("admin:accounts_audit", "admin:accounts_audit_export")
    return any(request.path.startswith(str(reverse_lazy(page))) for page in pages)


def _is_assignments(request: HttpRequest) -> bool:
    assignments = str(reverse_lazy("admin:accounts_laneassignment_changelist"))
    return request.path.startswith(assignments) and not _starts("admin:accounts_lanes_rights")(request)


def _is_scheduler(request: HttpRequest) -> bool:
    return request.path.endswith("/scheduler/")


def _is_models(request: HttpRequest) -> bool:
    """The scheduler's pages lie below the models', and have an entry of their own."""
    models = str(reverse_lazy("admin:inference_languagemodel_changelist"))
    return request.path.startswith(models) and not _is_scheduler(request)


def _is_usage(request: HttpRequest) -> bool:
    return request.path == str(reverse_lazy("admin:accounts_usage"))


def _is_hours(request: HttpRequest) -> bool:
    """The usage page lies below the hours', and has an entry of its own."""
    hours = str(reverse_lazy("admin:accounts_usagerollup_changelist"))
    return request.path.startswith(hours) and not _is_usage(request)


def _subheader(request: HttpRequest) -> str:
    """Who only may look is told so on every page."""
    user: Any = request.user
    if user.is_superuser:
        return "Operations"
    return "Audit, read only" if user.is_auditor else "Operations, read only"


def _shows_history(request: HttpRequest) -> bool:
    """What the audit says of a row is linked for who may read the audit."""
    return _shown("accounts_auditevent")(request)


#: The chat page's warm greys, from paper to night.
_BASE = {
    "50": "#fbfaf8",
    "100": "#f3f1ec",
    "200": "#e3dfd6",
    "300": "#cbc5b9",
    "400": "#9a9488",
    "500": "#6f695e",
    "600": "#575249",
    "700": "#4a463f",
    "800": "#2b2925",
    "900": "#1a1917",
    "950": "#100f0e",
}
#: The green of a signal that shows clear.
_PRIMARY = {
    "50": "#eef8f3",
    "100": "#e2f1ea",
    "200": "#bfe3d2",
    "300": "#8fd0b1",
    "400": "#45c48d",
    "500": "#27ab7c",
    "600": "#0d6b4d",
    "700": "#0a573f",
    "800": "#0b4634",
    "900": "#0a392b",
    "950": "#06140d",
}

UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "Signalbox",
    "SITE_HEADER": "Signalbox",
    "SITE_SUBHEADER": _subheader,
    # The way to the chat is named in the sidebar and the user's menu.
    "SITE_URL": None,
    "SITE_ICON": {
        "light": _static("signalbox/pictures/favicon.svg"),
        "dark": _static("signalbox/pictures/signal-dark.svg"),
    },
    "SITE_FAVICONS": [
        {"rel": "icon", "type": "image/svg+xml", "href": _static("signalbox/pictures/favicon.svg")}
    ],
    "SHOW_HISTORY": _shows_history,
    "SHOW_VIEW_ON_SITE": False,
    "SHOW_BACK_BUTTON": False,
    "BORDER_RADIUS": "8px",
    "COLORS": {
        "base": _BASE,
        "primary": _PRIMARY,
        "font": {
            "subtle-light": "var(--color-base-500)",
            "subtle-dark": "var(--color-base-400)",
            "default-light": "var(--color-base-600)",
            "default-dark": "var(--color-base-300)",
            "important-light": "var(--color-base-900)",
            "important-dark": "var(--color-base-100)",
        },
    },
    "DASHBOARD_CALLBACK": "inference.admin.now.dashboard",
    "STYLES": [_static("signalbox/admin/admin.css")],
    "SCRIPTS": [_static("signalbox/admin/admin.js")],
    "ACCOUNT": {
        "navigation": [
            {"title": "Chat", "link": reverse_lazy("chat")},
            {"title": "Change password", "link": reverse_lazy("password")},
        ]
    },
    "COMMAND": {"search_models": True},
    "SIDEBAR": {
        "show_search": False,
        "command_search": True,
        "navigation": [
            {
                "items": [
                    {
                        "title": "Now",
                        "icon": "monitor_heart",
                        "link": reverse_lazy("admin:index"),
                        "permission": _shown("inference_worker"),
                    },
                    {
                        "title": "Scheduler",
                        "icon": "speed",
                        "link": reverse_lazy("admin:inference_scheduler"),
                        "active": _is_scheduler,
                        "permission": _shown("inference_languagemodel"),
                    },
                    _page("Generations", "forum", "inference_generation"),
                    {
                        "title": "Usage",
                        "icon": "monitoring",
                        "link": reverse_lazy("admin:accounts_usage"),
                        "active": _is_usage,
                        "permission": _shown("accounts_usagerollup"),
                    },
                    _page("Workers", "memory", "inference_worker"),
                    {**_page("Models", "deployed_code", "inference_languagemodel"), "active": _is_models},
                    _page("Published prefixes", "campaign", "inference_publishedprefix"),
                    _page("Speculation verdicts", "query_stats", "inference_speculationverdict"),
                    {
                        "title": "Chat",
                        "icon": "chat",
                        "link": reverse_lazy("chat"),
                        "permission": _shown("inference_worker"),
                    },
                ],
            },
            {
                "title": "Who may do what",
                "separator": True,
                "items": [
                    _page("Tenants", "apartment", "accounts_tenant"),
                    _page("API keys", "key", "accounts_apikey"),
                    _page("Entitlements", "verified_user", "accounts_entitlement"),
                    _page("Lanes", "alt_route", "accounts_lane"),
                    _page("Prices", "sell", "accounts_price"),
                    _page("Members", "group", "accounts_membership"),
                    _page("Users", "person", "accounts_user"),
                    _page("Webhook endpoints", "webhook", "accounts_webhookendpoint"),
                ],
            },
            {
                "title": "Proof",
                "separator": True,
                "items": [
                    {
                        "title": "Audit overview",
                        "icon": "policy",
                        "link": reverse_lazy("admin:accounts_audit"),
                        "active": _is_audit,
                        "permission": _shown("accounts_auditevent"),
                    },
                    {**_page("Audit", "history_edu", "accounts_auditevent"), "active": _is_events},
                    {
                        **_page("Lane assignments", "signpost", "accounts_laneassignment"),
                        "active": _is_assignments,
                    },
                    {
                        "title": "Who may use a lane",
                        "icon": "how_to_reg",
                        "link": reverse_lazy("admin:accounts_lanes_rights"),
                        "active": _starts("admin:accounts_lanes_rights"),
                        "permission": _shown("accounts_laneassignment"),
                    },
                    _page("Ledger", "receipt_long", "accounts_ledgerentry"),
                    {**_page("Usage by hour", "bar_chart", "accounts_usagerollup"), "active": _is_hours},
                    _page("Budget events", "notifications", "accounts_budgetevent"),
                    _page("Webhook deliveries", "outbox", "accounts_webhookdelivery"),
                ],
            },
        ],
    },
}
