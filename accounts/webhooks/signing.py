"""How a message is signed: Standard Webhooks' headers, over id, time and body. Pure, but for the pepper.

Tenants' messages have an HMAC-SHA-256 (``v1``); what is the installation's own, the signature of a key pair (``v1a``).
An endpoint's secret follows from the pepper, the endpoint's id and the version of its secret. It is shown once and
stored nowhere; whoever reads the database alone cannot sign.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable

from accounts import pepper
from accounts.models import WebhookEndpoint

_PREFIX = "whsec_"


def secret_of(endpoint: WebhookEndpoint) -> str:
    """The secret that an endpoint's messages are signed with now, as its owner keeps it: ``whsec_<base64>``.

    Raises ``pepper.PepperMissing``.
    """
    purpose = f"webhook secret {endpoint.id.hex} {endpoint.secret_version}"
    return _PREFIX + base64.b64encode(pepper.derive(endpoint.pepper_id, purpose)).decode()


def headers(secret: str, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """What is sent beside ``body``. ``timestamp``: when this attempt is made, in seconds since 1970."""
    key = base64.b64decode(secret.removeprefix(_PREFIX))
    signature = hmac.new(key, _signed(message_id, timestamp, body), hashlib.sha256).digest()
    return _headers(message_id, timestamp, "v1", signature)


def key_pair_headers(
    sign: Callable[[bytes], bytes], message_id: str, timestamp: int, body: bytes
) -> dict[str, str]:
    """As ``headers``, signed by an Ed25519 key's ``sign``: who checks it has nothing that could sign another."""
    return _headers(message_id, timestamp, "v1a", sign(_signed(message_id, timestamp, body)))


def _signed(message_id: str, timestamp: int, body: bytes) -> bytes:
    return b".".join((message_id.encode(), str(timestamp).encode(), body))


def _headers(message_id: str, timestamp: int, version: str, signature: bytes) -> dict[str, str]:
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"{version},{base64.b64encode(signature).decode()}",
    }
