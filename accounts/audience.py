"""Who sees which pages of the admin, and who may send what to them: one rule for the site, its menu and its pages.

Operators see and do everything. Staff who may look see everything but the audit. Auditors see the audit, and of the
rest what it leads to. Only operators change anything: whatever anybody else sends is refused before a page sees it,
unless the page says that what is sent there only reads.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import Any, Final, TypeVar

from django.contrib.auth.models import AnonymousUser

from accounts import permissions
from accounts.models import User

_SAFE: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_View = TypeVar("_View", bound=Callable[..., Any])


class Audience(StrEnum):
    """Whom a page of the admin is for. Operators are always among them."""

    #: Staff who may look.
    STAFF = "staff"
    #: Staff who may look, and auditors: the audit's pages lead there.
    STAFF_AND_AUDITORS = "staff_and_auditors"
    #: Auditors.
    AUDITORS = "auditors"


def sees(user: User | AnonymousUser, audience: Audience) -> bool:
    """Whether a page for ``audience`` is shown to ``user``."""
    if not (isinstance(user, User) and user.is_active and user.is_staff):
        return False
    if user.is_superuser:
        return True
    match audience:
        case Audience.STAFF:
            return not user.is_auditor
        case Audience.STAFF_AND_AUDITORS:
            return True
        case Audience.AUDITORS:
            return permissions.may_read_audit(user)


def is_auditor_only(user: User | AnonymousUser) -> bool:
    """Whether ``user`` is in the admin for the audit alone."""
    return isinstance(user, User) and user.is_auditor and not user.is_superuser


def only_reads(view: _View) -> _View:
    """Mark a view of the admin: what is sent to it changes nothing of what people decide, so anybody may who sees it.

    Verifying the chain and exporting are such, and leaving.
    """
    view.only_reads = True  # type: ignore[attr-defined]
    return view


def may_send(user: User | AnonymousUser, method: str | None, view: Callable[..., Any]) -> bool:
    """Whether ``user`` may send a request of ``method`` to ``view``, a page that they see."""
    return (
        method in _SAFE
        or getattr(view, "only_reads", False)
        or (isinstance(user, User) and user.is_superuser)
    )
