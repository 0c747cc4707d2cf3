"""A rollup's id follows from what it sums, so that sums can be replaced on every database; a key may be rotated again.

Rollups are made anew from the ledger: the table is replaced, not converted.
"""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("accounts", "0002_lanes_and_audit_head")]

    operations = [
        migrations.AlterField(
            model_name="apikey",
            name="rotated_from",
            field=models.ForeignKey(
                blank=True,
                editable=False,
                null=True,
                on_delete=django.db.models.deletion.PROTECT,
                related_name="rotated_to",
                to="accounts.apikey",
            ),
        ),
        migrations.DeleteModel(name="UsageRollup"),
        migrations.CreateModel(
            name="UsageRollup",
            fields=[
                ("id", models.UUIDField(editable=False, primary_key=True, serialize=False)),
                ("tenant_id", models.UUIDField()),
                ("api_key_id", models.UUIDField(null=True)),
                ("model", models.CharField(max_length=200)),
                ("lane", models.CharField(max_length=30)),
                ("hour", models.DateTimeField(help_text="Start of the hour, UTC.")),
                ("generations", models.PositiveIntegerField()),
                ("prompt_tokens", models.PositiveBigIntegerField()),
                ("cached_tokens", models.PositiveBigIntegerField()),
                ("completion_tokens", models.PositiveBigIntegerField()),
            ],
            options={
                "ordering": ["-hour"],
                "indexes": [models.Index(fields=["tenant_id", "-hour"], name="usage_rollup_of_tenant")],
            },
        ),
    ]
