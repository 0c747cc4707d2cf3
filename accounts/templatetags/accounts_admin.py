"""The admin's ways to write times and numbers, for its templates."""

from __future__ import annotations

from django import template

from accounts import formatting

register = template.Library()
register.filter("ago", formatting.ago)
register.filter("exactly", formatting.exactly)
register.filter("number", formatting.number)
