"""The audit can be asked about one object; two constraints say what they mean when a form breaks them."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("accounts", "0003_rollups_by_content_and_repeated_rotation")]

    operations = [
        migrations.AddIndex(
            model_name="auditevent",
            index=models.Index(fields=["object_kind", "object_id"], name="audit_event_of_object"),
        ),
        migrations.RemoveConstraint(model_name="entitlement", name="entitlement_one_standing_per_lane"),
        migrations.AddConstraint(
            model_name="entitlement",
            constraint=models.UniqueConstraint(
                condition=models.Q(("ended_at", None)),
                fields=("tenant", "lane"),
                name="entitlement_one_standing_per_lane",
                violation_error_message="This tenant is entitled to this lane already.",
            ),
        ),
        migrations.RemoveConstraint(model_name="membership", name="membership_one_live_per_user"),
        migrations.AddConstraint(
            model_name="membership",
            constraint=models.UniqueConstraint(
                condition=models.Q(("ended_at", None)),
                fields=("tenant", "user"),
                name="membership_one_live_per_user",
                violation_error_message="This user is a member of this tenant already.",
            ),
        ),
    ]
