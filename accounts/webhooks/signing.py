"""How a message is signed: Standard Webhooks' headers, HMAC-SHA-256 over id, time and body. Pure, but for the pepper.

An endpoint's secret follows from the pepper, the endpoint's id and the version of its secret. It is shown once and
stored nowhere; whoever reads the database alone cannot sign.
"""

from __future__ import annotations

import base64
import hashlib
import hmac

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
    signed = b".".join((message_id.encode(), str(timestamp).encode(), body))
    signature = base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{signature}",
    }
