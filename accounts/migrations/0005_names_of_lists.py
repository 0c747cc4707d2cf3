from django.db import migrations


class Migration(migrations.Migration):
    """What the admin calls its lists. Nothing changes in the database."""

    dependencies = [("accounts", "0004_audit_of_object")]

    operations = [
        migrations.AlterModelOptions(
            name="auditevent",
            options={"ordering": ["-sequence"], "verbose_name_plural": "audit"},
        ),
        migrations.AlterModelOptions(
            name="ledgerentry",
            options={"ordering": ["-settled_at"], "verbose_name_plural": "ledger"},
        ),
        migrations.AlterModelOptions(
            name="membership",
            options={"ordering": ["tenant", "user"], "verbose_name_plural": "members"},
        ),
        migrations.AlterModelOptions(
            name="usagerollup",
            options={
                "ordering": ["-hour"],
                "verbose_name": "hour of usage",
                "verbose_name_plural": "usage by hour",
            },
        ),
    ]
