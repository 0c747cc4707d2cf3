"""The routes below ``/v1/organization``."""

from __future__ import annotations

from typing import Final

from django.urls import URLPattern, path

from inference.api.organization.api_keys import (
    create_project_api_key,
    delete_project_api_key,
    list_project_api_keys,
    retrieve_project_api_key,
)
from inference.api.organization.audit_logs import list_audit_logs
from inference.api.organization.costs import costs
from inference.api.organization.key_changes import modify_project_api_key, rotate_project_api_key
from inference.api.organization.projects import (
    archive_project,
    create_project,
    list_projects,
    modify_project,
    retrieve_project,
)
from inference.api.organization.rate_limits import list_project_rate_limits, update_project_rate_limit
from inference.api.organization.service_accounts import (
    create_service_account,
    delete_service_account,
    list_service_accounts,
    retrieve_service_account,
)
from inference.api.organization.usage import completions_usage
from inference.api.resource import Resource

_PROJECTS: Final = "organization/projects"
_PROJECT: Final = f"{_PROJECTS}/<str:project_id>"
_API_KEYS: Final = f"{_PROJECT}/api_keys"
_SERVICE_ACCOUNTS: Final = f"{_PROJECT}/service_accounts"
_RATE_LIMITS: Final = f"{_PROJECT}/rate_limits"

urlpatterns: Final[list[URLPattern]] = [
    path(_PROJECTS, Resource(list_projects, create_project)),
    path(_PROJECT, Resource(retrieve_project, modify_project)),
    path(f"{_PROJECT}/archive", archive_project),
    path(_API_KEYS, Resource(list_project_api_keys, create_project_api_key)),
    path(
        f"{_API_KEYS}/<str:api_key_id>",
        Resource(retrieve_project_api_key, modify_project_api_key, delete_project_api_key),
    ),
    path(f"{_API_KEYS}/<str:api_key_id>/rotate", rotate_project_api_key),
    path(_SERVICE_ACCOUNTS, Resource(list_service_accounts, create_service_account)),
    path(
        f"{_SERVICE_ACCOUNTS}/<str:service_account_id>",
        Resource(retrieve_service_account, delete_service_account),
    ),
    path(_RATE_LIMITS, list_project_rate_limits),
    path(f"{_RATE_LIMITS}/<str:rate_limit_id>", update_project_rate_limit),
    path("organization/usage/completions", completions_usage),
    path("organization/costs", costs),
    path("organization/audit_logs", list_audit_logs),
]
