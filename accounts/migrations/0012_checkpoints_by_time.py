from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0011_audit_bounds"),
    ]

    operations = [
        migrations.AddIndex(
            model_name="auditcheckpoint",
            index=models.Index(fields=["at"], name="audit_checkpoint_by_time"),
        ),
    ]
