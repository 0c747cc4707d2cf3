"""The platform's own periodic tasks."""

from __future__ import annotations

import time

import structlog
from celery import shared_task

from signalbox.configuration import configuration

_DAY_S = 86_400
_log = structlog.get_logger(__name__)


@shared_task
def delete_old_logs() -> int:
    """Delete what was put aside of the processes' logs longer than ``log_retention_days`` ago; how many files."""
    settings = configuration()
    oldest = time.time() - settings.log_retention_days * _DAY_S
    # `<name>.<time>.log` was put aside; `<name>.log` is being written.
    old = [path for path in settings.logs_dir.glob("*.*.log") if path.stat().st_mtime < oldest]
    for path in old:
        path.unlink(missing_ok=True)
    if old:
        _log.info("old_logs_deleted", files=len(old), older_than_days=settings.log_retention_days)
    return len(old)
