"""One log line an event, with the request's id: for people on a console, as JSON for machines."""

from __future__ import annotations

import logging.config
from typing import Any, Final, Literal

import redis
import structlog

from accounts.key_text import CONTAINS_KEY

#: Name of the logger that has a line for each request.
ACCESS_LOG: Final = "signalbox.access"


def _has_exception(record: logging.LogRecord) -> bool:
    return record.exc_info is not None


def _outage_in_one_line(record: logging.LogRecord) -> bool:
    """Channels' layer logs every second and every socket of an outage of the store: that is no fault to be traced."""
    if record.exc_info and isinstance(error := record.exc_info[1], redis.RedisError):
        record.msg, record.args = f"{record.getMessage()} {error}", ()
        record.levelno, record.levelname = logging.WARNING, "WARNING"
        record.exc_info = None
    return True


def hide_secrets_of_keys(_logger: Any, _method: str, line: str) -> str:
    """A structlog processor behind the renderer: of whatever looks like an API key, its public prefix is left.

    Clients put keys into URLs and headers that are logged, and exceptions repeat what they were given.
    """
    return CONTAINS_KEY.sub(lambda found: f"{found[0].rpartition('_')[0]}_[hidden]", line)


def logging_settings(level: str, format_: Literal["console", "json"]) -> None:
    """Set structlog and the standard library's logging to write the same lines to standard error."""
    shared: list[Any] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    # Plain tracebacks: the pretty ones print local variables, keys and prompts among them.
    renderer: Any = structlog.dev.ConsoleRenderer(
        colors=False, exception_formatter=structlog.dev.plain_traceback
    )
    final: list[Any] = [renderer]
    if format_ == "json":
        final = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    logging.config.dictConfig(
        {
            "version": 1,
            "disable_existing_loggers": False,
            "filters": {
                "with_exception": {"()": "django.utils.log.CallbackFilter", "callback": _has_exception},
                "outage_in_one_line": {
                    "()": "django.utils.log.CallbackFilter",
                    "callback": _outage_in_one_line,
                },
            },
            "formatters": {
                "structured": {
                    "()": structlog.stdlib.ProcessorFormatter,
                    "foreign_pre_chain": shared,
                    "processors": [
                        structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                        *final,
                        hide_secrets_of_keys,
                    ],
                }
            },
            "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "structured"}},
            "root": {"handlers": ["stderr"], "level": level},
            "loggers": {
                "daphne": {"level": "WARNING"},
                "django.channels.server": {"level": "WARNING"},
                # The access log has every request; these two repeat the refused ones.
                "django.request": {"filters": ["with_exception"]},
                "django.security.DisallowedHost": {"level": "CRITICAL"},
                "channels_redis.pubsub": {"filters": ["outage_in_one_line"]},
                # Periodic tasks say what they did themselves, where it is worth a line.
                "celery": {"level": "WARNING"},
                "asyncio": {"level": "WARNING"},
                "kombu": {"level": "WARNING"},
                "amqp": {"level": "WARNING"},
                "httpx": {"level": "WARNING"},
            },
        }
    )
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
