"""Every route below ``/v1``, by walking the URLconf: whatever is added to it is tried without being named in a test."""

from __future__ import annotations

import re
from typing import Any, Final

from pydantic import BaseModel

from inference.api.endpoint import Endpoint
from inference.api.resource import endpoints_of
from inference.api.urls import urlpatterns
from tests.inference.api.bodies import chat, text

#: The endpoints of every path, with something that there is not in the place of each of its parts.
PATHS: Final[dict[str, tuple[Endpoint, ...]]] = {
    f"/v1/{re.sub('<[^>]+>', 'none', str(pattern.pattern))}": endpoints
    for pattern in urlpatterns
    if (endpoints := endpoints_of(pattern.callback))
}
ENDPOINTS: Final = [(path, endpoint) for path, endpoints in PATHS.items() for endpoint in endpoints]
#: Of the endpoints that demand something of their body, one that has it.
BODIES: Final[dict[str, dict[str, Any]]] = {
    "create_chat_completion": chat(),
    "create_completion": text(),
    "create_project": {"name": "New"},
    "create_project_api_key": {"name": "new"},
    "create_service_account": {"name": "new"},
}


def taking_bodies() -> list[tuple[str, Endpoint, type[BaseModel]]]:
    """Path, endpoint and body of all that take one."""
    return [(path, endpoint, endpoint.body) for path, endpoint in ENDPOINTS if endpoint.body is not None]


def body_of(endpoint: Endpoint) -> dict[str, Any] | None:
    """A body with what the endpoint demands; None if it takes none."""
    return BODIES.get(endpoint.name, {}) if endpoint.body is not None else None
