"""How the admin looks, and what its sidebar leads to: django-unfold's settings."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from django.templatetags.static import static
from django.urls import reverse_lazy


def _static(path: str) -> Any:
    return lambda request: static(path)


def _page(title: str, icon: str, model: str) -> dict[str, Any]:
    return {"title": title, "icon": icon, "link": reverse_lazy(f"admin:{model}_changelist")}


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
    return "Operations" if request.user.is_superuser else "Operations, read only"


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
    "SHOW_HISTORY": True,
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
                    {"title": "Now", "icon": "monitor_heart", "link": reverse_lazy("admin:index")},
                    {
                        "title": "Scheduler",
                        "icon": "speed",
                        "link": reverse_lazy("admin:inference_scheduler"),
                        "active": _is_scheduler,
                    },
                    _page("Generations", "forum", "inference_generation"),
                    {
                        "title": "Usage",
                        "icon": "monitoring",
                        "link": reverse_lazy("admin:accounts_usage"),
                        "active": _is_usage,
                    },
                    _page("Workers", "memory", "inference_worker"),
                    {**_page("Models", "deployed_code", "inference_languagemodel"), "active": _is_models},
                    _page("Published prefixes", "campaign", "inference_publishedprefix"),
                    _page("Speculation verdicts", "query_stats", "inference_speculationverdict"),
                    {"title": "Chat", "icon": "chat", "link": reverse_lazy("chat")},
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
                    _page("Audit", "history_edu", "accounts_auditevent"),
                    _page("Lane assignments", "signpost", "accounts_laneassignment"),
                    _page("Ledger", "receipt_long", "accounts_ledgerentry"),
                    {**_page("Usage by hour", "bar_chart", "accounts_usagerollup"), "active": _is_hours},
                    _page("Budget events", "notifications", "accounts_budgetevent"),
                    _page("Webhook deliveries", "outbox", "accounts_webhookdelivery"),
                ],
            },
        ],
    },
}
