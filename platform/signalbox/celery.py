"""Periodic and background tasks: the Celery application, its schedule in code."""

from __future__ import annotations

import os

from celery import Celery
from celery.schedules import crontab

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "signalbox.settings")

app = Celery("signalbox")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks(["accounts", "inference", "signalbox"])

# The logs are the site's own: see signalbox.logging.
app.conf.worker_hijack_root_logger = False
app.conf.worker_redirect_stdouts = False
app.conf.broker_connection_retry_on_startup = True

#: What runs when. Every task is idempotent: running late, twice, or beside itself does no harm.
app.conf.beat_schedule = {
    "roll up usage": {"task": "accounts.tasks.roll_up_usage", "schedule": 60.0, "options": {"expires": 60}},
    "stamp last use": {
        "task": "accounts.tasks.stamp_last_used",
        "schedule": 60.0,
        "options": {"expires": 60},
    },
    "record failed log-ins": {
        "task": "accounts.tasks.record_failed_log_ins",
        "schedule": 60.0,
        "options": {"expires": 60},
    },
    "tell budget events": {
        "task": "accounts.tasks.tell_budget_events",
        "schedule": 10.0,
        "options": {"expires": 10},
    },
    "send webhooks": {"task": "accounts.tasks.send_webhooks", "schedule": 10.0, "options": {"expires": 10}},
    # What is not sealed yet is proved by nothing: at most a second of it.
    "seal assignments": {
        "task": "accounts.tasks.seal_assignments",
        "schedule": 1.0,
        "options": {"expires": 1},
    },
    # How often a checkpoint is made is a setting; this is how soon it is followed, and failed anchors are tried again.
    "checkpoint the audit": {
        "task": "accounts.tasks.checkpoint_audit",
        "schedule": 60.0,
        "options": {"expires": 60},
    },
    # At night, UTC, before old records are moved.
    "verify the audit": {"task": "accounts.tasks.verify_audit", "schedule": crontab(hour="2", minute="13")},
    "archive the audit": {"task": "accounts.tasks.archive_audit", "schedule": crontab(hour="4", minute="23")},
    # A queue without a worker is where the longest wait matters most, and nobody else would look then.
    "end overdue": {"task": "inference.tasks.end_overdue", "schedule": 5.0, "options": {"expires": 5}},
    "delete old requests": {"task": "inference.tasks.delete_old_requests", "schedule": crontab(minute="17")},
    "delete old idempotency keys": {
        "task": "inference.tasks.delete_old_idempotency_keys",
        "schedule": crontab(minute="37"),
    },
    # At night, UTC: it reads every table of the books.
    "verify the ledger": {
        "task": "inference.tasks.verify_ledger",
        "schedule": crontab(hour="3", minute="47"),
    },
    "delete old logs": {"task": "signalbox.tasks.delete_old_logs", "schedule": crontab(minute="27")},
}
