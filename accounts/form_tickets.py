"""Forms that are taken once. Reloading the page that shows a secret sends its form again, and must make no second one.

Such a form carries a ticket: signed, for one person and one address, good for a day. Whoever takes it first marks it in
the cache that all web processes share, in one step; the mark outlives the ticket.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager

from django.core import signing
from django.core.cache import cache
from django.http import HttpRequest

from accounts.refusals import ChangeRefusal, ChangeRefused

#: The hidden field's name.
FIELD = "ticket"
_SALT = "accounts.form_tickets"
_GOOD_FOR_S = 24 * 3600


class TakenBefore(Exception):
    """The form was taken before, and nothing was done now."""


def ticket_for(request: HttpRequest) -> str:
    """A ticket for the form that ``request``'s person is shown at its address."""
    return signing.dumps([secrets.token_urlsafe(12), *_bearer(request)], salt=_SALT)


def refuse_if_taken(request: HttpRequest) -> None:
    """Raise ``TakenBefore`` for a form that was: before it is checked, because what it made makes it look wrong."""
    try:
        number = signing.loads(request.POST.get(FIELD, ""), salt=_SALT)[0]
    except signing.BadSignature:
        return
    if cache.get(_mark(number)):
        raise TakenBefore


@contextmanager
def taken_once(request: HttpRequest) -> Iterator[None]:
    """Take the form that was posted. What fails in the block gives the ticket back.

    Raises ``TakenBefore``, and ``ChangeRefused`` for a form whose ticket is missing, another's or too old.
    """
    try:
        number, *bearer = signing.loads(request.POST.get(FIELD, ""), salt=_SALT, max_age=_GOOD_FOR_S)
    except signing.BadSignature:
        number, bearer = "", []
    if bearer != _bearer(request):
        raise ChangeRefused(
            ChangeRefusal.FORM_EXPIRED, "This form was too old, and nothing was made. Send it again."
        )
    if not cache.add(_mark(number), True, 2 * _GOOD_FOR_S):
        raise TakenBefore
    try:
        yield
    except BaseException:
        cache.delete(_mark(number))
        raise


def _mark(number: str) -> str:
    return f"ticket:{number}"


def _bearer(request: HttpRequest) -> list[str]:
    return [str(request.user.pk), request.path]
