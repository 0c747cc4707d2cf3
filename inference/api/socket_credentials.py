"""Who speaks on a chat socket: an API key, or somebody signed in. Asked anew for every frame that starts something.

Everything here runs database queries, in a thread.
"""

from __future__ import annotations

from importlib import import_module
from typing import Protocol
from uuid import UUID

import redis
import structlog
from asgiref.sync import async_to_sync
from channels.layers import get_channel_layer
from django.conf import settings
from django.contrib.auth import get_user
from django.db.models import QuerySet
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
from inference.api.frame_errors import FrameError, FrameErrorCode
from inference.models import Generation

_log = structlog.get_logger(__name__)


class Credentials(Protocol):
    """What was presented, and what it opens at this moment."""

    def principal(self, *, tenant: str | None = None, conversation: UUID | None = None) -> Principal:
        """Who speaks, for the tenant (or the tenant of the conversation) at hand.

        Raises ``ApiError``, ``InvalidKey``, ``NotAMember`` or ``FrameError``.
        """

    def generation(self, name: str) -> tuple[Principal, Generation]:
        """A generation that may be followed and cancelled, and as whom. Raises ``ApiError`` for all others alike."""


class KeyCredentials:
    """An API key, used from an address. It sees what the keys of its tenant generated, never what members chat."""

    def __init__(self, raw: str, address: str) -> None:
        self._raw = raw
        self._address = address

    def principal(self, *, tenant: str | None = None, conversation: UUID | None = None) -> Principal:
        principal = authenticate_key(self._raw, self._address)
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
        principal = authenticate_key(self._raw, self._address)
        found = _find(principal, name)
        if found is None:
            raise _no_generation()
        return principal, found


class SessionCredentials:
    """Somebody's session in a browser. They see their own generations, in every tenant they belong to."""

    def __init__(self, session_key: str) -> None:
        self._session_key = session_key

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
                FrameErrorCode.TENANT_REQUIRED,
                "`tenant` is required: you belong to more than one.",
                param="tenant",
            )
        return principals[0]

    def generation(self, name: str) -> tuple[Principal, Generation]:
        user = self.user()
        for principal in principals_of_user(user.id):
            found = _find(principal, name)
            if found is not None:
                return principal, found
        raise _no_generation()


def sockets_of(user_id: UUID) -> str:
    """The channel layer's group of a user's sockets."""
    return f"user.{user_id.hex}"


def recheck_sockets(user_id: UUID) -> None:
    """Have every socket of the user look whether its session still holds: after a log-out, or a new password."""
    try:
        async_to_sync(get_channel_layer().group_send)(sockets_of(user_id), {"type": "session.check"})
    except redis.RedisError:
        # Frames are authorized one by one all the same; only what streams already goes on to its end.
        _log.warning("sockets_not_rechecked", user=user_id.hex, exc_info=True)


def require(principal: Principal, *scopes: str) -> None:
    """Raises ``ApiError`` where the principal holds none of ``scopes``."""
    if not principal.scopes.intersection(scopes):
        needed = " or ".join(f"`{scope}`" for scope in scopes)
        raise ApiError(
            ErrorCode.INSUFFICIENT_SCOPE, f"{principal.name} lacks the scope {needed} that this needs."
        )


def _find(principal: Principal, name: str) -> Generation | None:
    id_ = ids.parse(name)
    if id_ is None:
        return None
    with tenant_scope(principal.tenant_id):
        generations: QuerySet[Generation] = Generation.objects.filter(id=id_).select_related("model")
        if principal.user_id is None:
            return generations.filter(user=None).first()
        return generations.filter(user_id=principal.user_id).first()


def _no_generation() -> ApiError:
    return ApiError(ErrorCode.GENERATION_NOT_FOUND, "There is no such generation.", param="generation")


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise NotAMember from None
