"""Which key a request was made with, and what that key may do here.

Keys are read from two headers and from nowhere else: a URL ends up in logs and histories, and a session
cookie is sent by a browser whoever wrote the page.
"""

from __future__ import annotations

from collections.abc import Collection

from django.http import HttpRequest

from accounts.actors import address_of
from accounts.authentication import authenticate_key
from accounts.models import Scope
from accounts.principal import Principal
from inference.api.errors import ApiError, ErrorCode, invalid_api_key

#: More cannot be a key; less work for who sends megabytes.
_LONGEST_KEY = 200


def authenticate(request: HttpRequest) -> Principal:
    """The caller. Runs database queries. Raises ``ApiError`` or ``InvalidKey``: 401 for every kind of bad key alike."""
    return authenticate_key(_presented_key(request), address_of(request))


def require_scope(principal: Principal, scopes: Collection[Scope]) -> None:
    """Raises ``ApiError`` 403 for a caller who holds none of ``scopes``."""
    if not any(scope.value in principal.scopes for scope in scopes):
        needed = " or ".join(f"`{scope.value}`" for scope in scopes)
        raise ApiError(
            ErrorCode.INSUFFICIENT_SCOPE, f"This API key lacks the scope {needed} that this needs."
        )


def _presented_key(request: HttpRequest) -> str:
    scheme, _, credentials = request.headers.get("Authorization", "").partition(" ")
    key = credentials.strip() if scheme.lower() == "bearer" else ""
    key = key or request.headers.get("x-api-key", "").strip()
    if not key or len(key) > _LONGEST_KEY:
        raise invalid_api_key()
    return key
