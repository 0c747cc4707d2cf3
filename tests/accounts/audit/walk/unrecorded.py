"""Places where something is done that the audit has no event for, each with why there is nothing to record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

_LOOKS: Final = "shows, and changes nothing"
_FINDS: Final = "keeps what it has found, which is no change of what it has looked at"
_LEADS: Final = "leads to another page"
_STARTS: Final = "starts a process; what that changes is recorded where it does"
_GENERATES: Final = "has its lane assignment, which is sealed, and its ledger entry"
_OWN: Final = "a person's own words, which they keep and nobody else reads"

#: By surface.
UNRECORDED: Final[Mapping[str, str]] = {
    # The admin
    "admin: index": _LOOKS,
    "admin: search": _LOOKS,
    "admin: jsi18n": _LOOKS,
    "admin: view_on_site": _LEADS,
    "admin: autocomplete": _LOOKS,
    "admin: app_list": _LEADS,
    "admin: login": _LEADS,
    "admin: password_change": _LEADS,
    "admin: password_change_done": _LEADS,
    "admin: accounts_tenant_new_key": _LEADS,
    "admin: accounts_tenant_grant": _LEADS,
    "admin: accounts_tenant_add_member": _LEADS,
    "admin: accounts_usage": _LOOKS,
    "admin: accounts_audit": _LOOKS,
    "admin: accounts_audit_script": _LOOKS,
    "admin: accounts_audit_verify": _FINDS,
    "admin: accounts_lane_rights": _LOOKS,
    "admin: accounts_lanes_rights": _LOOKS,
    "admin: inference_scheduler": _LOOKS,
    "admin: inference_languagemodel_scheduler": _LOOKS,
    "admin: inference_worker_scheduler": _LEADS,
    # Pages
    "page: POST /": _LEADS,
    "page: POST /chat": _LEADS,
    "page: DELETE /chat": _LEADS,
    "page: PATCH /chat": _LEADS,
    "page: POST /tenant": _LEADS,
    "page: DELETE /tenant": _LEADS,
    "page: PATCH /tenant": _LEADS,
    "page: POST /chat/": _LOOKS,
    "page: POST /chat/c/<str:conversation>": _LOOKS,
    "page: POST /tenant/": _LOOKS,
    "page: POST /health/live": _LOOKS,
    "page: POST /health/ready": _LOOKS,
    "page: POST /metrics": _LOOKS,
    "page: POST /chat/api/conversations": _OWN,
    "page: PATCH /chat/api/conversations/<str:conversation>": _OWN,
    # The API
    "api: POST /v1/chat/completions": _GENERATES,
    "api: POST /v1/completions": _GENERATES,
    "api: POST /v1/generations/<str:generation_id>/cancel": "whoever started it ends it; the generation says so",
    # The chat socket
    "frame: authenticate": _LOOKS,
    "frame: generate": _GENERATES,
    "frame: cancel": "whoever started it ends it; the generation says so",
    "frame: resume": _LOOKS,
    # Commands
    "manage.py audit keys": _LOOKS,
    "manage.py audit verify": _FINDS,
    "manage.py celery": _STARTS,
    "manage.py changepassword": "is refused: it would write past the audit",
    "manage.py configuration_reference": _LOOKS,
    "manage.py createsuperuser": "is refused: it would write past the audit",
    "manage.py entitlement list": _LOOKS,
    "manage.py key list": _LOOKS,
    "manage.py model list": _LOOKS,
    "manage.py model verify": _LOOKS,
    "manage.py pool list": _LOOKS,
    "manage.py price list": _LOOKS,
    "manage.py status": _LOOKS,
    "manage.py tenant list": _LOOKS,
    "manage.py up": _STARTS,
    "manage.py user list": _LOOKS,
    "manage.py vendor_assets": "puts files of others into the source tree, for whoever develops",
    "manage.py web": _STARTS,
    "manage.py worker": _STARTS,
    # Tasks
    "task: accounts.tasks.archive_audit": "does what `manage.py audit archive` does, and records what that records",
    "task: accounts.tasks.roll_up_usage": "sums the ledger, which stays as it is",
    "task: accounts.tasks.stamp_last_used": "says when a key was used last",
    "task: accounts.tasks.tell_budget_events": "tells people what they have used; each message is a row",
    "task: accounts.tasks.send_webhooks": "sends what is there; each message says what became of it",
    "task: accounts.tasks.verify_audit": _FINDS,
    "task: inference.tasks.delete_old_idempotency_keys": "forgets names that clients gave, after a day",
    "task: inference.tasks.end_overdue": "ends generations; each says itself why",
    "task: inference.tasks.verify_ledger": _LOOKS,
    "task: signalbox.tasks.delete_old_logs": "deletes log files after the days that are set",
}
