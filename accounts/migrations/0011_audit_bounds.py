"""The audit's records have numbers from 1 on, and a verification keeps its notes.

It fails where a row stands below that: Signalbox writes none, so that somebody has put it there. The database names the
constraint (``…_from_one``); take a copy of it, and see what the row is, before anything is deleted.
"""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0010_audit_proofs"),
    ]

    operations = [
        migrations.AddField(
            model_name="auditverification",
            name="notes",
            field=models.JSONField(default=list),
        ),
        migrations.AddConstraint(
            model_name="auditarchive",
            constraint=models.CheckConstraint(
                condition=models.Q(("first_sequence__gte", 1)), name="audit_archive_from_one"
            ),
        ),
        migrations.AddConstraint(
            model_name="auditevent",
            constraint=models.CheckConstraint(
                condition=models.Q(("sequence__gte", 1)), name="audit_event_from_one"
            ),
        ),
        migrations.AddConstraint(
            model_name="sealedassignment",
            constraint=models.CheckConstraint(
                condition=models.Q(("batch__gte", 1), ("index__gte", 0)), name="sealed_assignment_from_one"
            ),
        ),
    ]
