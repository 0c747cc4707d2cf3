"""How the admin writes times, numbers and links. Apart from its pages, because templates are loaded before those."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

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


def time_field(name: str, description: str) -> Callable[[Any, Any], str]:
    """A read-only field of an admin page, as one of its methods: the row's time ``name``, to the second."""

    def shown(page: Any, row: Any) -> str:
        at = getattr(row, name)
        return exactly(at) if at else EMPTY

    shown.short_description = description  # type: ignore[attr-defined]
    return shown


def short_generation(generation_id: UUID) -> SafeString:
    """A generation's id for a list: enough to tell it from its neighbours."""
    return format_html('<code class="sb-code sb-nowrap">gen_{}…</code>', generation_id.hex[:12])


def badge(text: str, kind: str = "") -> SafeString:
    """A word that stands out; ``kind`` may be ``warning``."""
    return format_html('<span class="sb-badge sb-badge-{}">{}</span>', kind or "plain", text)


def lasted(seconds: float) -> str:
    """A duration as people say it."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 100:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def unbroken(text: str) -> SafeString:
    """Text that stays on one line."""
    return format_html('<span class="sb-nowrap">{}</span>', text)


def number(value: int) -> str:
    """A whole number with its thousands set apart."""
    return intcomma(value)


def counted(count: int, noun: str) -> str:
    """So many of a thing: 1 token, 1,200 tokens."""
    return f"{number(count)} {noun}{'' if count == 1 else 's'}"


def file_size(count: int) -> str:
    """Bytes of a file, decimal as files are told: 541.6 MB."""
    return _scaled(count, 1000, ("kB", "MB", "GB", "TB"))


def memory_size(count: int) -> str:
    """Bytes of memory, in the binary units that it is set in: 512.0 MiB."""
    return _scaled(count, 1024, ("KiB", "MiB", "GiB", "TiB"))


def _scaled(count: int, step: int, units: tuple[str, ...]) -> str:
    value, unit = float(count), "bytes"
    for larger in units:
        if value < step:
            break
        value, unit = value / step, larger
    return f"{count}\xa0bytes" if unit == "bytes" else f"{value:.1f}\xa0{unit}"


def link(obj: Model | None, text: Any = None) -> SafeString | str:
    """A link to a row's own page."""
    if obj is None:
        return EMPTY
    url = reverse(f"admin:{obj._meta.app_label}_{obj._meta.model_name}_change", args=(obj.pk,))
    return format_html('<a class="sb-link" href="{}">{}</a>', url, obj if text is None else text)


def code(text: str) -> SafeString | str:
    """Something to be copied exactly: an id, a prefix, a hash."""
    return format_html('<code class="sb-code">{}</code>', text) if text else EMPTY


def money(amount: Decimal) -> str:
    """An amount with all the places that it has, two at least: 0.000012, 3.10."""
    whole, _, places = f"{amount:,f}".partition(".")
    return f"{whole}.{places.rstrip('0'):0<2}"
