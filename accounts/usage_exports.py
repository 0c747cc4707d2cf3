"""Usage that is taken along as a file: what was asked for stands in the audit before the first line leaves."""

from __future__ import annotations

from django.db import transaction

from accounts import audit
from accounts.audit import ObjectRef
from accounts.principal import Actor
from accounts.usage_report import Question


def record_export(question: Question, *, actor: Actor) -> None:
    """Record that ``actor`` takes along the usage that ``question`` asks for."""
    asked = {
        "first": question.first.isoformat(),
        "last": question.last.isoformat(),
        "time_zone": question.zone.key,
        "bucket": question.bucket,
        "tenant_id": question.tenant_id,
        "api_key_id": question.api_key_id,
        "model": question.model,
        "lane": question.lane,
    }
    whose = ObjectRef("usage", str(question.tenant_id or "all"))
    with transaction.atomic():
        audit.record(actor, "usage.export", whose, None, asked, tenant_id=question.tenant_id)
