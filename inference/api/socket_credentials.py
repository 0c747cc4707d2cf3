"""Who speaks on a chat socket: an API key, or somebody signed in. Asked anew for every frame that starts something.

Everything here runs database queries, in a thread.
"""

from __future__ import annotations

import hashlib
from importlib import import_module
from typing import Protocol
from uuid import UUID

from django.conf import settings
from django.contrib.auth import get_user
from django.http import HttpRequest

from accounts.authentication import (
    NotAMember,
    authenticate_key,
    principal_of_member,
    principals_of_user,
)
from accounts.models import User
from accounts.principal import Principal
from accounts.tenancy import tenant_scope
from inference import conversations
from inference.api import ids
from inference.api.errors import ApiError, ErrorCode
from inference.api.frames import FrameError, FrameErrorCode
from inference.models import Generation


class Credentials(Protocol):
    """What was presented, and what it opens at this moment."""

    def principal(self, *, tenant: str | None = None, conversation: UUID | None = None) -> Principal:
        """Who speaks, for the tenant (or the tenant of the conversation) at hand.

        Raises ``ApiError``, ``InvalidKey``, ``NotAMember`` or ``FrameError``.
        """

    def generation(self, name: str) -> tuple[Principal, Generation]:
        """A generation that may be followed and cancelled, and as whom. Raises ``ApiError`` for all others alike."""


class KeyCredentials:
    """An API key. It sees what the keys of its tenant generated, never what members chat."""

    def __init__(self, raw: str) -> None:
        self._raw = raw

    def principal(self, *, tenant: str | None = None, conversation: UUID | None = None) -> Principal:
        principal = authenticate_key(self._raw)
        if conversation is not None:
            raise FrameError(
                FrameErrorCode.CONVERSATION_NEEDS_SESSION,
                "`conversation` is for people who are signed in: an API key has none. Send the messages themselves.",
                param="conversation",
            )
        if tenant is not None and tenant != principal.tenant_id.hex:
            raise FrameError(FrameErrorCode.NOT_A_MEMBER, "The API key is another tenant's.", param="tenant")
        return principal

    def generation(self, name: str) -> tuple[Principal, Generation]:
        principal = authenticate_key(self._raw)
        found = _find(principal, name, user_id=None)
        if found is None:
            raise _no_generation()
        return principal, found


class SessionCredentials:
    """Somebody's session in a browser. They see their own generations, in every tenant they belong to."""

    def __init__(self, session_key: str) -> None:
        self._session_key = session_key

    @property
    def group(self) -> str:
        """Where the channel layer tells that this session has ended."""
        return session_group(self._session_key)

    def user(self) -> User:
        """The signed-in user. Raises ``FrameError`` when the session has ended meanwhile."""
        request = HttpRequest()
        request.session = import_module(settings.SESSION_ENGINE).SessionStore(self._session_key)
        user = get_user(request)
        if not isinstance(user, User) or not user.is_active:
            raise FrameError(FrameErrorCode.NOT_AUTHENTICATED, "You are signed out. Sign in again.")
        return user

    def principal(self, *, tenant: str | None = None, conversation: UUID | None = None) -> Principal:
        user = self.user()
        if conversation is None and tenant is not None:
            return principal_of_member(user.id, _uuid(tenant))
        principals = principals_of_user(user.id)
        if not principals:
            raise NotAMember
        if conversation is not None:
            tenants = {principal.tenant_id: principal for principal in principals}
            found = conversations.tenant_of(user.id, conversation, tenants)
            if found is None:
                raise conversations.ConversationRefused.not_found()
            return tenants[found]
        if len(principals) > 1:
            raise FrameError(
                FrameErrorCode.TENANT_REQUIRED, "`tenant` is required: you belong to more than one.", param="tenant"
            )
        return principals[0]

    def generation(self, name: str) -> tuple[Principal, Generation]:
        user = self.user()
        for principal in principals_of_user(user.id):
            found = _find(principal, name, user_id=user.id)
            if found is not None:
                return principal, found
        raise _no_generation()


def session_group(session_key: str) -> str:
    """The channel layer's group of a session's sockets. The key itself is a secret and goes into no group's name."""
    return f"session.{hashlib.sha256(session_key.encode()).hexdigest()[:32]}"


def require(principal: Principal, *scopes: str) -> None:
    """Raises ``ApiError`` where the principal holds none of ``scopes``."""
    if not principal.scopes.intersection(scopes):
        needed = " or ".join(f"`{scope}`" for scope in scopes)
        raise ApiError(ErrorCode.INSUFFICIENT_SCOPE, f"{principal.name} lacks the scope {needed} that this needs.")


def _find(principal: Principal, name: str, *, user_id: UUID | None) -> Generation | None:
    id_ = ids.parse(name)
    if id_ is None:
        return None
    with tenant_scope(principal.tenant_id):
        found: Generation | None = Generation.objects.filter(id=id_, user_id=user_id).first()
    return found


def _no_generation() -> ApiError:
    return ApiError(ErrorCode.GENERATION_NOT_FOUND, "There is no such generation.", param="generation")


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotAMember from None
