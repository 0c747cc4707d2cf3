from __future__ import annotations

import base64
import re
from collections.abc import Iterator

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.hmac import HMAC

from accounts import pepper
from accounts.models import WebhookEndpoint
from accounts.webhooks import signing
from tests.factories import WebhookEndpointFactory

#: Published with the convention, for implementations to check themselves by.
PUBLISHED_SECRET = "whsec_plJ3nmyCDGBKInavdOK15jsl"
PUBLISHED_ID, PUBLISHED_TIME = "msg_loFOjxBNrRLzqYUf", 1731705121
PUBLISHED_BODY = b'{"event_type":"ping","data":{"success":true}}'
PUBLISHED_SIGNATURE = "v1,rAvfW3dJ/X/qxhsaXPOyyCGmRKsaKWcsNccKXlIktD0="


def by_another_library(secret: str, signed: bytes) -> str:
    code = HMAC(base64.b64decode(secret.removeprefix("whsec_")), hashes.SHA256())
    code.update(signed)
    return base64.b64encode(code.finalize()).decode()


@pytest.fixture
def _own_pepper() -> Iterator[None]:
    """Lets a test change the pepper."""
    pepper._by_id.cache_clear()
    yield
    pepper._by_id.cache_clear()


def test_a_signature_is_the_one_that_the_convention_publishes() -> None:
    headers = signing.headers(PUBLISHED_SECRET, PUBLISHED_ID, PUBLISHED_TIME, PUBLISHED_BODY)
    assert headers == {
        "webhook-id": PUBLISHED_ID,
        "webhook-timestamp": str(PUBLISHED_TIME),
        "webhook-signature": PUBLISHED_SIGNATURE,
    }


def test_another_library_computes_the_same_signature() -> None:
    secret = signing.secret_of(WebhookEndpointFactory.build(tenant=None))
    body = '{"text":"größer als ▲"}'.encode()
    signature = signing.headers(secret, "evt_1", 1_700_000_000, body)["webhook-signature"]
    assert signature == "v1," + by_another_library(secret, b"evt_1.1700000000." + body)


def test_each_endpoint_and_version_has_a_secret_of_its_own_of_256_bits() -> None:
    endpoints = [WebhookEndpointFactory.build(tenant=None, secret_version=n) for n in (1, 1, 2)]
    endpoints[2].id = endpoints[0].id
    secrets = [signing.secret_of(endpoint) for endpoint in endpoints]
    assert len(set(secrets)) == 3
    for secret in secrets:
        assert re.fullmatch(r"whsec_[0-9A-Za-z+/]{43}=", secret)
    assert signing.secret_of(endpoints[0]) == secrets[0]


@pytest.mark.usefixtures("_own_pepper")
def test_a_secret_stays_when_the_pepper_is_changed() -> None:
    endpoint: WebhookEndpoint = WebhookEndpointFactory.build(tenant=None)
    secret = signing.secret_of(endpoint)
    assert pepper.rotate() != endpoint.pepper_id
    pepper._by_id.cache_clear()
    assert signing.secret_of(endpoint) == secret
