"""What an entitlement's page has in which section: for who grants it, who changes it, and who only looks."""

from __future__ import annotations

from typing import Any, Final

from accounts.admin.limit_fields import LIMIT_FIELDS

Fieldsets = tuple[tuple[str | None, dict[str, Any]], ...]

#: What is shown of a limit beside its field.
CONSUMPTION_FIELDS: Final = tuple(f"{name}_consumption" for name in LIMIT_FIELDS)
#: All limits and what is used of them, for whoever may not change them.
LIMITS_TABLE: Final = "limits_table"

_LIMIT_ROWS: Final = tuple(zip(LIMIT_FIELDS, CONSUMPTION_FIELDS, strict=True))
_RIGHTS: Final = ("weight", "speculation")
_TIME: Final = ("starts_at", "ends_at")
_EXHAUSTED: Final = ("on_exhausted", "step_down_to", "longest_queue_wait_s")
_HOW_MUCH: Final = "All of them hold. Days, weeks and months are those of the tenant's own calendar."

TO_GRANT: Final[Fieldsets] = (
    (
        None,
        {
            "description": "Entitles a tenant to a lane, until you end it or for a time. What its requests ask for "
            "beyond its entitlements becomes the next lower lane that it has. You see what it does before it is saved.",
            "fields": ("tenant", "lane"),
        },
    ),
    ("Rights", {"fields": _RIGHTS}),
    ("Limits", {"fields": LIMIT_FIELDS, "description": _HOW_MUCH}),
    ("Time", {"fields": _TIME}),
    ("When it is exhausted", {"fields": _EXHAUSTED}),
    ("Why", {"fields": ("reason",)}),
)
TO_CHANGE: Final[Fieldsets] = (
    (None, {"fields": ("tenant_link", "lane", "state_line")}),
    ("Rights", {"fields": _RIGHTS, "description": "Holds for what is admitted from now on."}),
    (
        "Limits",
        {
            "fields": _LIMIT_ROWS,
            "description": f"{_HOW_MUCH} One that is lowered below what is used admits nothing until its window ends.",
        },
    ),
    ("Time", {"fields": _TIME}),
    ("When it is exhausted", {"fields": _EXHAUSTED}),
    ("Why", {"fields": ("reason", "granted_by", "granted_exactly", "ended_exactly")}),
    (
        "Second operator",
        {
            "fields": (
                "approval_words",
                "decided_by",
                "decided_exactly",
                "decision_reason",
                "replaces_link",
                "replaced_by_link",
            )
        },
    ),
)


def to_look_at(fieldsets: Fieldsets) -> Fieldsets:
    """The same sections with one table where the form has limits."""
    return tuple(
        (
            title,
            {**options, "fields": (LIMITS_TABLE,) if options["fields"] == _LIMIT_ROWS else options["fields"]},
        )
        for title, options in fieldsets
    )
