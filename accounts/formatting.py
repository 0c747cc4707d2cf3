"""How the admin writes times, numbers and links. Apart from its pages, because templates are loaded before those."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.contrib.humanize.templatetags.humanize import intcomma, naturaltime
from django.db.models import Model
from django.urls import reverse
from django.utils import timezone
from django.utils.formats import date_format
from django.utils.html import format_html
from django.utils.safestring import SafeString

EMPTY = "–"


def ago(at: datetime | None, *, never: str = EMPTY) -> SafeString | str:
    """How long ago (or how soon), with the exact time to be seen when pointed at."""
    if at is None:
        return never
    return format_html(
        '<time datetime="{}" title="{}" class="sb-nowrap">{}</time>',
        at.isoformat(),
        exactly(at),
        naturaltime(at),
    )


def exactly(at: datetime) -> str:
    """A time to the second, with its zone."""
    local = timezone.localtime(at)
    return f"{date_format(local, 'j M Y, H:i:s')} {local.tzname()}"


def number(value: int) -> str:
    """A whole number with its thousands set apart."""
    return intcomma(value)


def link(obj: Model | None, text: Any = None) -> SafeString | str:
    """A link to a row's own page."""
    if obj is None:
        return EMPTY
    url = reverse(f"admin:{obj._meta.app_label}_{obj._meta.model_name}_change", args=(obj.pk,))
    return format_html('<a class="sb-link" href="{}">{}</a>', url, obj if text is None else text)


def code(text: str) -> SafeString | str:
    """Something to be copied exactly: an id, a prefix, a hash."""
    return format_html('<code class="sb-code">{}</code>', text) if text else EMPTY
