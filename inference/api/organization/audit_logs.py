"""``GET /v1/organization/audit_logs``: who did what, when, in the words of OpenAI's log."""

from __future__ import annotations

from accounts.audit.reading import disclosable
from inference.api.endpoint import Call, endpoint
from inference.api.errors import ErrorCode
from inference.api.organization.access import AUDITORS, TAG
from inference.api.organization.audit_log_questions import AuditLogQuery, asked_for, page_of
from inference.api.organization.audit_log_shapes import AuditLogList, described
from inference.api.queries import parameters_of, read_query


@endpoint(
    "GET",
    summary="List the audit's entries",
    tag=TAG,
    scopes=AUDITORS,
    answer=AuditLogList,
    parameters=parameters_of(AuditLogQuery),
    errors=(ErrorCode.PROJECT_NOT_FOUND,),
)
def list_audit_logs(call: Call) -> AuditLogList:
    """Newest first. Keys of the scope `operator` or `audit` read all of it; those of the scope `admin` what was done in
    their own project."""
    query = read_query(call.request, AuditLogQuery)
    events, has_more = page_of(disclosable(asked_for(call, query)), query)
    data = described(events, call.principal)
    return AuditLogList(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=has_more,
    )
