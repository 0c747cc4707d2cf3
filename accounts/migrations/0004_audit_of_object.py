"""The audit can be asked about one object."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("accounts", "0003_rollups_by_content_and_repeated_rotation")]

    operations = [
        migrations.AddIndex(
            model_name="auditevent",
            index=models.Index(fields=["object_kind", "object_id"], name="audit_event_of_object"),
        ),
    ]
