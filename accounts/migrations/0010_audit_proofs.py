"""The audit becomes provable: batches of assignments, checkpoints, archives, what can be erased, and who may look."""

import uuid

import django.db.models.deletion
from django.db import migrations, models


def set_up(apps, schema_editor):
    apps.get_model("accounts", "AuditSettings").objects.get_or_create(id=1)


class Migration(migrations.Migration):
    dependencies = [
        ("accounts", "0009_allowances_required"),
    ]

    operations = [
        migrations.CreateModel(
            name="AuditArchive",
            fields=[
                ("first_sequence", models.PositiveBigIntegerField(primary_key=True, serialize=False)),
                ("last_sequence", models.PositiveBigIntegerField(unique=True)),
                ("previous_hash", models.CharField(max_length=64)),
                ("last_hash", models.CharField(max_length=64)),
                ("assignments", models.PositiveBigIntegerField()),
                ("file_name", models.CharField(max_length=100)),
                ("file_sha256", models.CharField(max_length=64)),
                ("file_bytes", models.PositiveBigIntegerField()),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "ordering": ["first_sequence"],
            },
        ),
        migrations.CreateModel(
            name="AuditCheckpoint",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                ("at", models.DateTimeField()),
                ("sequence", models.PositiveBigIntegerField(db_index=True)),
                ("hash", models.CharField(max_length=64)),
                ("key_id", models.CharField(max_length=16)),
                ("signature", models.CharField(max_length=128)),
            ],
            options={
                "ordering": ["-sequence", "-at"],
            },
        ),
        migrations.CreateModel(
            name="AuditPersonalValue",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("path", models.CharField(max_length=60)),
                ("person_id", models.UUIDField(db_index=True, null=True)),
                ("salt", models.CharField(max_length=32)),
                ("value", models.CharField(max_length=254)),
            ],
        ),
        migrations.CreateModel(
            name="AuditSettings",
            fields=[
                ("id", models.PositiveSmallIntegerField(default=1, primary_key=True, serialize=False)),
                (
                    "archive_after_days",
                    models.PositiveIntegerField(
                        blank=True,
                        help_text="Events and assignments that are older move to archive files. Empty: they stay in the database.",
                        null=True,
                    ),
                ),
                (
                    "checkpoint_minutes",
                    models.PositiveIntegerField(
                        default=60,
                        help_text="A signed checkpoint is made so often, where something was recorded.",
                    ),
                ),
            ],
            options={
                "verbose_name_plural": "audit settings",
            },
        ),
        migrations.CreateModel(
            name="AuditSigningKey",
            fields=[
                ("id", models.CharField(max_length=16, primary_key=True, serialize=False)),
                ("public_key", models.CharField(max_length=64)),
                ("signed_by", models.CharField(blank=True, max_length=16)),
                ("signature", models.CharField(blank=True, max_length=128)),
                ("created_at", models.DateTimeField()),
            ],
            options={
                "ordering": ["created_at"],
            },
        ),
        migrations.CreateModel(
            name="AuditVerification",
            fields=[
                (
                    "id",
                    models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False),
                ),
                ("started_at", models.DateTimeField()),
                ("finished_at", models.DateTimeField()),
                ("first_sequence", models.PositiveBigIntegerField()),
                ("last_sequence", models.PositiveBigIntegerField()),
                ("last_hash", models.CharField(max_length=64)),
                ("events", models.PositiveBigIntegerField()),
                ("assignments", models.PositiveBigIntegerField()),
                ("unsealed", models.PositiveBigIntegerField()),
                ("fault", models.JSONField(null=True)),
            ],
            options={
                "ordering": ["-started_at"],
            },
        ),
        migrations.CreateModel(
            name="SealedAssignment",
            fields=[
                ("generation_id", models.UUIDField(primary_key=True, serialize=False)),
                ("batch", models.PositiveBigIntegerField()),
                ("index", models.PositiveIntegerField()),
                ("hash", models.CharField(max_length=64)),
            ],
        ),
        migrations.RemoveField(
            model_name="laneassignment",
            name="user_name",
        ),
        migrations.AddField(
            model_name="auditevent",
            name="format",
            field=models.PositiveSmallIntegerField(default=1),
        ),
        migrations.AddField(
            model_name="auditevent",
            name="personal",
            field=models.JSONField(default=dict),
        ),
        migrations.AddField(
            model_name="auditevent",
            name="session",
            field=models.CharField(blank=True, max_length=16),
        ),
        migrations.AddField(
            model_name="user",
            name="erased_at",
            field=models.DateTimeField(
                blank=True, editable=False, help_text="Their personal data was erased then.", null=True
            ),
        ),
        migrations.AddField(
            model_name="user",
            name="is_auditor",
            field=models.BooleanField(
                default=False,
                help_text="Sees all of the audit in the admin, and changes nothing.",
                verbose_name="auditor",
            ),
        ),
        migrations.AlterField(
            model_name="auditevent",
            name="action",
            field=models.CharField(db_index=True, max_length=60),
        ),
        migrations.AlterField(
            model_name="auditevent",
            name="actor_id",
            field=models.CharField(blank=True, db_index=True, max_length=36),
        ),
        migrations.AlterField(
            model_name="auditevent",
            name="actor_name",
            field=models.CharField(blank=True, max_length=150),
        ),
        migrations.AlterField(
            model_name="auditevent",
            name="at",
            field=models.DateTimeField(db_index=True),
        ),
        migrations.AlterField(
            model_name="auditevent",
            name="tenant_id",
            field=models.UUIDField(null=True),
        ),
        migrations.AddIndex(
            model_name="auditevent",
            index=models.Index(fields=["tenant_id", "sequence"], name="audit_event_of_tenant"),
        ),
        migrations.AddIndex(
            model_name="laneassignment",
            index=models.Index(fields=["created_at"], name="lane_assignment_by_time"),
        ),
        migrations.AddConstraint(
            model_name="auditarchive",
            constraint=models.CheckConstraint(
                condition=models.Q(("last_sequence__gte", models.F("first_sequence"))),
                name="audit_archive_forwards",
            ),
        ),
        migrations.AddField(
            model_name="auditpersonalvalue",
            name="event",
            field=models.ForeignKey(
                db_column="sequence",
                db_constraint=False,
                on_delete=django.db.models.deletion.DO_NOTHING,
                related_name="personal_values",
                to="accounts.auditevent",
            ),
        ),
        migrations.AddConstraint(
            model_name="auditsettings",
            constraint=models.CheckConstraint(
                condition=models.Q(("id", 1)), name="audit_settings_single_row"
            ),
        ),
        migrations.AddConstraint(
            model_name="auditsettings",
            constraint=models.CheckConstraint(
                condition=models.Q(
                    ("archive_after_days", None), ("archive_after_days__gte", 1), _connector="OR"
                ),
                name="audit_settings_archive_after_a_day",
            ),
        ),
        migrations.AddConstraint(
            model_name="auditsettings",
            constraint=models.CheckConstraint(
                condition=models.Q(("checkpoint_minutes__gte", 1)), name="audit_settings_checkpoint_minutes"
            ),
        ),
        migrations.AddConstraint(
            model_name="sealedassignment",
            constraint=models.UniqueConstraint(fields=("batch", "index"), name="sealed_assignment_place"),
        ),
        migrations.AddConstraint(
            model_name="auditpersonalvalue",
            constraint=models.UniqueConstraint(fields=("event", "path"), name="audit_personal_value_once"),
        ),
        migrations.AddConstraint(
            model_name="user",
            constraint=models.CheckConstraint(
                condition=models.Q(("erased_at", None), ("is_active", False), _connector="OR"),
                name="user_erased_is_closed",
            ),
        ),
        migrations.RunPython(set_up, migrations.RunPython.noop, elidable=False),
    ]
