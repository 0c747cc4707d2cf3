"""The audit as rows. What is chained is never changed: the database refuses it (``accounts.audit.triggers``)."""

from __future__ import annotations

import uuid

from django.db import models


class AuditEvent(models.Model):
    """One change, by whom, before and after. Append-only; each row's hash covers the previous one's.

    Written by ``accounts.audit.record`` alone. Carries ids and names as they were, and no foreign keys. What is about a
    person stands in ``AuditPersonalValue``; here is a commitment to it, by the path of the field that it belongs to.
    """

    sequence = models.PositiveBigIntegerField(primary_key=True)
    #: How its content is hashed: see ``accounts.audit.contents``.
    format = models.PositiveSmallIntegerField(default=1)
    at = models.DateTimeField(db_index=True)
    actor_kind = models.CharField(max_length=10)
    actor_id = models.CharField(max_length=36, blank=True, db_index=True)
    actor_name = models.CharField(max_length=150, blank=True)
    #: A fingerprint of the browser's session that it was done in.
    session = models.CharField(max_length=16, blank=True)
    action = models.CharField(max_length=60, db_index=True)
    object_kind = models.CharField(max_length=40)
    object_id = models.CharField(max_length=64)
    object_name = models.CharField(max_length=200, blank=True)
    tenant_id = models.UUIDField(null=True)
    before = models.JSONField(null=True)
    after = models.JSONField(null=True)
    request_id = models.CharField(max_length=64, blank=True)
    address = models.CharField(max_length=45, blank=True)
    #: Commitments to personal values, by path: ``actor_name``, ``address``, ``object_name``, ``before.email``, …
    personal = models.JSONField(default=dict)
    previous_hash = models.CharField(max_length=64)
    hash = models.CharField(max_length=64, unique=True)

    class Meta:
        ordering = ["-sequence"]
        verbose_name_plural = "audit"
        indexes = [
            models.Index(fields=["object_kind", "object_id"], name="audit_event_of_object"),
            models.Index(fields=["tenant_id", "sequence"], name="audit_event_of_tenant"),
        ]
        constraints = [
            models.CheckConstraint(condition=models.Q(sequence__gte=1), name="audit_event_from_one"),
        ]

    def __str__(self) -> str:
        return f"{self.sequence}: {self.action} {self.object_name}".strip()


class AuditPersonalValue(models.Model):
    """One personal value of an event: a name, an address, an e-mail address. It can be erased; the chain holds.

    The commitment in the event covers salt, ``person_id`` (the user whom it is about, if known) and value.
    """

    event = models.ForeignKey(
        AuditEvent,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        related_name="personal_values",
        db_column="sequence",
    )
    path = models.CharField(max_length=60)
    person_id = models.UUIDField(null=True, db_index=True)
    salt = models.CharField(max_length=32)
    value = models.CharField(max_length=254)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["event", "path"], name="audit_personal_value_once")]

    def __str__(self) -> str:
        return f"{self.path} of event {self.event_id}"


class AuditHead(models.Model):
    """The chain's last sequence number and hash: one row, locked last in a transaction."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    sequence = models.PositiveBigIntegerField()
    hash = models.CharField(max_length=64)

    class Meta:
        constraints = [models.CheckConstraint(condition=models.Q(id=1), name="audit_head_single_row")]

    def __str__(self) -> str:
        return f"head at {self.sequence}"


class SealedAssignment(models.Model):
    """The leaf of one lane assignment in the Merkle tree of its batch. Append-only.

    ``batch`` is the sequence number of the event that chains the tree's root; ``index`` counts its leaves from 0.
    """

    generation_id = models.UUIDField(primary_key=True)
    batch = models.PositiveBigIntegerField()
    index = models.PositiveIntegerField()
    hash = models.CharField(max_length=64)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["batch", "index"], name="sealed_assignment_place"),
            models.CheckConstraint(
                condition=models.Q(batch__gte=1, index__gte=0), name="sealed_assignment_from_one"
            ),
        ]

    def __str__(self) -> str:
        return f"leaf {self.index} of batch {self.batch}"


class AuditSigningKey(models.Model):
    """A public key that checkpoints are signed with; the private one is a file. Append-only.

    ``id`` is the first 16 hexadecimal digits of SHA-256 of the public key. Each key but the first is vouched for by the
    one before it: ``signature`` is that one's, over the new key.
    """

    id = models.CharField(max_length=16, primary_key=True)
    public_key = models.CharField(max_length=64)
    signed_by = models.CharField(max_length=16, blank=True)
    signature = models.CharField(max_length=128, blank=True)
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["created_at"]

    def __str__(self) -> str:
        return self.id


class AuditCheckpoint(models.Model):
    """The chain's head at a moment, signed (Ed25519). Append-only; copies of it belong outside of the database."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    at = models.DateTimeField()
    sequence = models.PositiveBigIntegerField(db_index=True)
    hash = models.CharField(max_length=64)
    key_id = models.CharField(max_length=16)
    signature = models.CharField(max_length=128)

    class Meta:
        ordering = ["-sequence", "-at"]
        # What is not brought outside yet is asked for each minute.
        indexes = [models.Index(fields=["at"], name="audit_checkpoint_by_time")]

    def __str__(self) -> str:
        return f"checkpoint at {self.sequence}"


class AuditArchive(models.Model):
    """A segment of the chain that was moved to a file, with the assignments that its batches sealed. Append-only.

    Only what such a row covers can be deleted from the chain's tables.
    """

    first_sequence = models.PositiveBigIntegerField(primary_key=True)
    last_sequence = models.PositiveBigIntegerField(unique=True)
    #: The hash before the first event, and at the last one.
    previous_hash = models.CharField(max_length=64)
    last_hash = models.CharField(max_length=64)
    assignments = models.PositiveBigIntegerField()
    file_name = models.CharField(max_length=100)
    file_sha256 = models.CharField(max_length=64)
    file_bytes = models.PositiveBigIntegerField()
    created_at = models.DateTimeField()

    class Meta:
        ordering = ["first_sequence"]
        constraints = [
            models.CheckConstraint(
                condition=models.Q(last_sequence__gte=models.F("first_sequence")),
                name="audit_archive_forwards",
            ),
            models.CheckConstraint(condition=models.Q(first_sequence__gte=1), name="audit_archive_from_one"),
        ]

    def __str__(self) -> str:
        return f"events {self.first_sequence} to {self.last_sequence}"


class AuditVerification(models.Model):
    """What one walk along the chain found. The next incremental one begins where the last that held has ended."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    started_at = models.DateTimeField()
    finished_at = models.DateTimeField()
    #: The first event that was looked at (1: from scratch), the last one, and the chain's hash there.
    first_sequence = models.PositiveBigIntegerField()
    last_sequence = models.PositiveBigIntegerField()
    last_hash = models.CharField(max_length=64)
    events = models.PositiveBigIntegerField()
    assignments = models.PositiveBigIntegerField()
    #: Assignments that waited for their batch then.
    unsealed = models.PositiveBigIntegerField()
    #: The first thing found wrong, in words and codes; empty: the chain held.
    fault = models.JSONField(null=True)
    #: What is no fault, and worth knowing: texts.
    notes = models.JSONField(default=list)

    class Meta:
        ordering = ["-started_at"]

    def __str__(self) -> str:
        return f"{self.first_sequence} to {self.last_sequence}: {'broken' if self.fault else 'holds'}"


class AuditSettings(models.Model):
    """What the operator sets about the audit: one row."""

    id = models.PositiveSmallIntegerField(primary_key=True, default=1)
    archive_after_days = models.PositiveIntegerField(
        null=True,
        blank=True,
        help_text="Events and assignments that are older move to archive files. Empty: they stay in the database.",
    )
    checkpoint_minutes = models.PositiveIntegerField(
        default=60, help_text="A signed checkpoint is made so often, where something was recorded."
    )

    class Meta:
        verbose_name_plural = "audit settings"
        constraints = [
            models.CheckConstraint(condition=models.Q(id=1), name="audit_settings_single_row"),
            models.CheckConstraint(
                condition=models.Q(archive_after_days=None) | models.Q(archive_after_days__gte=1),
                name="audit_settings_archive_after_a_day",
            ),
            models.CheckConstraint(
                condition=models.Q(checkpoint_minutes__gte=1), name="audit_settings_checkpoint_minutes"
            ),
        ]

    def __str__(self) -> str:
        return "audit settings"
