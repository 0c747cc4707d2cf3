"""Scenarios of the API's routes."""

from __future__ import annotations

from typing import Any, Final

from accounts.models import Lane
from tests.accounts.audit.walk.stage import Act, Scenario, Stage
from tests.factories import ApiKeyFactory, EntitlementFactory, TenantFactory

_PROJECTS: Final = "/v1/organization/projects"
_PROJECT: Final = f"{_PROJECTS}/<str:project_id>"


def _of(tenant: Any, rest: str = "") -> str:
    return f"projects/proj_{tenant.id.hex}{rest}"


def _key_of(key: Any, rest: str = "") -> str:
    return _of(key.tenant, f"/api_keys/key_{key.id.hex}{rest}")


def _limit_rates(stage: Stage) -> Act:
    right: Any = EntitlementFactory(lane=Lane.objects.get(name="low"))
    return stage.api("POST", _of(right.tenant, "/rate_limits/rl-low"), {"max_requests_per_1_minute": 7})


def _delete_account(stage: Stage) -> Act:
    key: Any = ApiKeyFactory()
    return stage.api("DELETE", _of(key.tenant, f"/service_accounts/svc_acct_{key.id.hex}"))


API: Final[dict[str, Scenario]] = {
    f"api: POST {_PROJECTS}": Scenario(
        ("tenant.create", "entitlement.grant"),
        lambda s: s.api("POST", "projects", {"name": "Rail", "slug": "rail", "lanes": ["low"]}),
    ),
    f"api: POST {_PROJECT}": Scenario(
        ("tenant.rename",), lambda s: s.api("POST", _of(TenantFactory()), {"name": "Railway"})
    ),
    f"api: POST {_PROJECT}/archive": Scenario(
        ("tenant.close",), lambda s: s.api("POST", _of(TenantFactory(), "/archive"))
    ),
    f"api: POST {_PROJECT}/api_keys": Scenario(
        ("api_key.create",),
        lambda s: s.api(
            "POST", _of(TenantFactory(), "/api_keys"), {"name": "app", "limits": {"tokens_per_day": 5}}
        ),
    ),
    f"api: POST {_PROJECT}/api_keys/<str:api_key_id>": Scenario(
        ("api_key.change",), lambda s: s.api("POST", _key_of(ApiKeyFactory()), {"name": "changed"})
    ),
    f"api: POST {_PROJECT}/api_keys/<str:api_key_id>/rotate": Scenario(
        ("api_key.rotate", "api_key.create"),
        lambda s: s.api("POST", _key_of(ApiKeyFactory(), "/rotate"), {"overlap_seconds": 60}),
    ),
    f"api: DELETE {_PROJECT}/api_keys/<str:api_key_id>": Scenario(
        ("api_key.revoke",), lambda s: s.api("DELETE", _key_of(ApiKeyFactory()))
    ),
    f"api: POST {_PROJECT}/service_accounts": Scenario(
        ("api_key.create",),
        lambda s: s.api("POST", _of(TenantFactory(), "/service_accounts"), {"name": "app"}),
    ),
    f"api: DELETE {_PROJECT}/service_accounts/<str:service_account_id>": Scenario(
        ("api_key.revoke",), _delete_account
    ),
    f"api: POST {_PROJECT}/rate_limits/<str:rate_limit_id>": Scenario(("entitlement.change",), _limit_rates),
}
