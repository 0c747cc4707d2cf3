from __future__ import annotations

from typing import Any

from django.db import migrations


def give_allowances(apps: Any, schema_editor: Any) -> None:
    """Every entitlement and every key gets an allowance without limits; a key's successors share its one."""
    allowance = apps.get_model("accounts", "Allowance")
    for entitlement in apps.get_model("accounts", "Entitlement").objects.filter(allowance=None):
        entitlement.allowance = allowance.objects.create(tenant_id=entitlement.tenant_id)
        entitlement.save(update_fields=["allowance"])
    keys = apps.get_model("accounts", "ApiKey").objects
    # Predecessors are older, so that they have theirs already.
    for key in keys.filter(allowance=None).order_by("created_at"):
        before = keys.filter(id=key.rotated_from_id).values_list("allowance_id", flat=True).first()
        key.allowance_id = before or allowance.objects.create(tenant_id=key.tenant_id).id
        key.save(update_fields=["allowance"])


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0007_allowances_and_budgets"),
    ]

    operations = [
        migrations.RunPython(give_allowances, migrations.RunPython.noop),
    ]
