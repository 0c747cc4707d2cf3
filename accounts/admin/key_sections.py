"""What a key's page has in which section: for who makes it, who changes it, and who only looks."""

from __future__ import annotations

from typing import Any, Final

from accounts.admin.limit_fields import LIMIT_FIELDS

Fieldsets = tuple[tuple[str | None, dict[str, Any]], ...]

#: What is shown of a limit beside its field.
CONSUMPTION_FIELDS: Final = tuple(f"{name}_consumption" for name in LIMIT_FIELDS)
#: Fields of the form, and what is shown in their place to whoever may not change the key.
READ_AS: Final = {
    "scopes": "scope_words",
    "default_lane": "lane",
    "allowed_lanes": "lanes_words",
    "allowed_models": "models_words",
    "allowed_networks": "networks_words",
    "expires_at": "expires_exactly",
}
_LIMIT_ROWS: Final = tuple(zip(LIMIT_FIELDS, CONSUMPTION_FIELDS, strict=True))
_MAY_DO: Final = ("scopes", "default_lane", "allowed_lanes", "allowed_models")
_HOW_MUCH: Final = (
    "A budget or a rate of the key's own, inside of what its tenant's entitlements give: both hold. A key that it is "
    "rotated to shares them."
)

TO_MAKE: Final[Fieldsets] = (
    (
        None,
        {
            "description": "A key is an application's credential. Its text is shown once, right after this page, "
            "and stored nowhere: keep it then.",
            "fields": ("tenant", "name"),
        },
    ),
    (
        "What it may do",
        {
            "fields": _MAY_DO,
            "description": "A key narrows what its tenant may do, and never widens it. The default lane is what its "
            "requests get that ask for none.",
        },
    ),
    ("Where it may be used from", {"fields": ("allowed_networks",)}),
    ("How much it may use", {"fields": LIMIT_FIELDS, "description": _HOW_MUCH}),
    ("How long", {"fields": ("expires_at",)}),
)
TO_CHANGE: Final[Fieldsets] = (
    (None, {"fields": ("name", "tenant_link", "prefix_code", "state_words")}),
    (
        "What it may do",
        {
            "fields": _MAY_DO,
            "description": "Holds from the next request on. A key narrows what its tenant may do, and never widens it.",
        },
    ),
    (
        "Where it may be used from",
        {
            "fields": ("allowed_networks",),
            "description": "From elsewhere it is refused like any bad key. What it runs already may finish.",
        },
    ),
    (
        "How much it may use",
        {
            "fields": (*_LIMIT_ROWS, "counted_for"),
            "description": f"{_HOW_MUCH} A change holds for what is admitted from now on; what is used stays used.",
        },
    ),
    (
        "Its life",
        {
            "fields": (
                "expires_at",
                "created_exactly",
                "created_by",
                "last_used",
                "rotated_from_link",
                "replaced_by_link",
                "revoked_exactly",
            ),
            "description": "When a key expires, what it runs may finish. When it is revoked, that is cancelled.",
        },
    ),
)


def to_look_at(fieldsets: Fieldsets) -> Fieldsets:
    """The same sections with words where the form has choices, and one table where it has limits."""
    return tuple(
        (title, {**options, "fields": _words_for(options["fields"])}) for title, options in fieldsets
    )


def _words_for(fields: tuple[Any, ...]) -> tuple[Any, ...]:
    limits = ("limits_table",) if set(_LIMIT_ROWS) <= set(fields) else ()
    return (*limits, *(READ_AS.get(field, field) for field in fields if field not in _LIMIT_ROWS))
