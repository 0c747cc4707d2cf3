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
    "delete old requests": {"task": "inference.tasks.delete_old_requests", "schedule": crontab(minute="17")},
    "delete old logs": {"task": "signalbox.tasks.delete_old_logs", "schedule": crontab(minute="27")},
}
