"""No body, however odd, does anything but what it says or is refused: nothing falls through to a fault of ours."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from accounts.models import Tenant
from inference.api.bodies import validate
from inference.api.endpoint import Endpoint
from inference.api.errors import ApiError
from inference.api.organization.api_keys import create_project_api_key
from inference.api.organization.key_changes import modify_project_api_key, rotate_project_api_key
from inference.api.organization.projects import create_project, modify_project
from inference.api.organization.rate_limits import UNLIMITED, update_project_rate_limit
from inference.api.organization.service_accounts import create_service_account
from tests.factories import ApiKeyFactory
from tests.inference.api.asgi_client import AsgiClient
from tests.inference.api.organization.asking import call_of

TEXTS = st.text(st.characters(codec="utf-8"), max_size=12) | st.sampled_from(
    ["", "a", "normal", "high", "read", "admin", "UTC", "../UTC", "10.0.0.0/8", "::1", "x" * 300, "\0"]
)
NUMBERS = st.sampled_from([-1, 0, 1, 60, UNLIMITED, 2**63, 2**70, 1.5])
SCALARS = st.none() | st.booleans() | TEXTS | NUMBERS
VALUES = SCALARS | st.lists(SCALARS, max_size=3) | st.dictionaries(TEXTS, SCALARS, max_size=2)


def fields_of(endpoint: Endpoint) -> st.SearchStrategy[dict[str, Any]]:
    """Some of its body's fields with anything in them; most with what they are for."""
    assert endpoint.body
    anything = st.dictionaries(
        st.sampled_from(sorted(endpoint.body.model_fields)) | TEXTS, VALUES, max_size=4
    )
    limits = st.dictionaries(st.sampled_from(["tokens_per_day", "concurrency"]), NUMBERS, max_size=2)
    likely: dict[str, Any] = {
        "name": TEXTS,
        "slug": TEXTS,
        "time_zone": TEXTS,
        "lanes": st.lists(TEXTS, max_size=3),
        "scopes": st.lists(TEXTS, max_size=3),
        "default_lane": TEXTS,
        "allowed_lanes": st.lists(TEXTS, max_size=3),
        "allowed_models": st.lists(TEXTS, max_size=3),
        "allowed_networks": st.lists(TEXTS, max_size=3),
        "limits": limits,
        "expires_in_seconds": NUMBERS,
        "overlap_seconds": NUMBERS,
        "max_requests_per_1_minute": NUMBERS,
        "max_tokens_per_1_minute": NUMBERS,
    }
    fitting = st.fixed_dictionaries(
        {}, optional={name: likely[name] for name in endpoint.body.model_fields if name in likely}
    )
    return anything | fitting | st.builds(lambda a, b: {**a, **b}, fitting, anything)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    "endpoint",
    [
        create_project,
        modify_project,
        create_project_api_key,
        modify_project_api_key,
        rotate_project_api_key,
        create_service_account,
        update_project_rate_limit,
    ],
    ids=lambda endpoint: endpoint.name,
)
def test_no_body_is_a_fault_of_ours(operator: AsgiClient, tenant: Tenant, endpoint: Any) -> None:
    assert operator.key
    call = call_of(operator.key, "/")
    ids = {
        "project_id": f"proj_{tenant.id.hex}",
        "api_key_id": f"key_{ApiKeyFactory(tenant=tenant).id.hex}",
        "rate_limit_id": "rl-normal",
    }
    taken = endpoint.function.__code__.co_varnames[: endpoint.function.__code__.co_argcount]
    arguments = {name: id_ for name, id_ in ids.items() if name in taken}

    @settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
    @given(fields_of(endpoint))
    def ask(fields: dict[str, Any]) -> None:
        assert outcome(fields) in (200, 400, 403, 409)

    def outcome(fields: dict[str, Any]) -> int:
        try:
            body = validate(endpoint.body, json.dumps(fields))
            endpoint.function(call, body, **arguments).model_dump_json()
        except ApiError as refused:
            return refused.status
        return 200

    ask()
