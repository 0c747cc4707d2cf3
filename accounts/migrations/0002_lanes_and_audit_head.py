"""The three lanes that every installation starts with, and the head of the empty audit chain."""

from django.db import migrations

LANES = [
    ("high", 0, "priority", "Served before everything else."),
    ("normal", 1, "default", "What requests get that ask for nothing."),
    ("low", 2, "flex", "Served when nothing higher waits; within the bound that the scheduler keeps."),
]


def seed(apps, schema_editor):
    Lane = apps.get_model("accounts", "Lane")
    for name, rank, service_tier, description in LANES:
        Lane.objects.get_or_create(
            name=name, defaults={"rank": rank, "service_tier": service_tier, "description": description}
        )
    AuditHead = apps.get_model("accounts", "AuditHead")
    AuditHead.objects.get_or_create(id=1, defaults={"sequence": 0, "hash": "0" * 64})


class Migration(migrations.Migration):
    dependencies = [("accounts", "0001_initial")]

    operations = [migrations.RunPython(seed, migrations.RunPython.noop, elidable=False)]
