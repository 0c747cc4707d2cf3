"""Django's settings, derived from ``signalbox.configuration``. Nothing here reads the environment."""

from __future__ import annotations

from typing import Any

import dj_database_url
from csp.constants import NONCE, NONE, SELF, UNSAFE_EVAL, UNSAFE_INLINE

from signalbox import admin_theme, secret_files, store
from signalbox.configuration import ROOT, configuration
from signalbox.logging import logging_settings
from signalbox.mail_server import MailUrlError, mail_server
from signalbox.state_directory import StateDirectoryError, check_file, ensure_directory

_configuration = configuration()

BASE_DIR = ROOT
try:
    if not _configuration.database_url:
        ensure_directory(_configuration.state_dir, "the state directory")
        # SQLite's own messages name no file. Beside the database it keeps two more.
        for suffix in ("", "-wal", "-shm"):
            check_file(_configuration.state_dir / f"db.sqlite3{suffix}", "the database")
    SECRET_KEY = secret_files.read_or_create("django_secret_key", 50)
except StateDirectoryError as error:
    raise SystemExit(str(error)) from None
DEBUG = _configuration.debug
ALLOWED_HOSTS = _configuration.allowed_hosts
CSRF_TRUSTED_ORIGINS = _configuration.trusted_origins

INSTALLED_APPS = [
    "unfold.apps.BasicAppConfig",
    "signalbox.apps.SignalboxAdminConfig",
    # Before Django's own: it refuses commands of theirs that write past the audit.
    "signalbox",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "servestatic.runserver_nostatic",
    "django.contrib.staticfiles",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "csp",
    "accounts",
    "inference",
]

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "servestatic.middleware.ServeStaticMiddleware",
    "csp.middleware.CSPMiddleware",
    "signalbox.request_ids.RequestIdMiddleware",
    "inference.api.middleware.ApiMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "signalbox.urls"
ASGI_APPLICATION = "signalbox.asgi.application"
APPEND_SLASH = False

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [ROOT / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
        },
    },
]

# Database: https://docs.djangoproject.com/en/5.2/ref/databases/#sqlite-notes. IMMEDIATE takes the write lock at
# the transaction's start, where waiting for it is possible, instead of failing at the first write.
_SQLITE_OPTIONS = {
    "transaction_mode": "IMMEDIATE",
    "timeout": 20,
    "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; PRAGMA foreign_keys=ON;",
}


def _database() -> dict[str, Any]:
    if not _configuration.database_url:
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": _configuration.state_dir / "db.sqlite3",
            "OPTIONS": _SQLITE_OPTIONS,
            # A file in tests too: the shared in-memory database locks tables where a file waits.
            "TEST": {"NAME": _configuration.state_dir / "test.sqlite3"},
        }
    database = dict(dj_database_url.parse(_configuration.database_url))
    if database["ENGINE"] == "django.db.backends.sqlite3":
        database["OPTIONS"] = _SQLITE_OPTIONS
    else:
        # A pool instead of persistent connections: under ASGI those would be kept per thread.
        database["CONN_MAX_AGE"] = 0
        database["OPTIONS"] = {"pool": {"min_size": 1, "max_size": 16, "timeout": 20}}
    return database


DATABASES = {"default": _database()}

AUTH_USER_MODEL = "accounts.User"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.UserAttributeSimilarityValidator"},
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
CSRF_FAILURE_VIEW = "signalbox.error_pages.csrf_failure"
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "chat"
LOGOUT_REDIRECT_URL = "login"
# Not from the cache as well: a session that ended while the cache was away would live on in it afterwards.
SESSION_ENGINE = "django.contrib.sessions.backends.db"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = _configuration.https
SECURE_PROXY_SSL_HEADER = ("HTTP_X_FORWARDED_PROTO", "https") if _configuration.https else None
SECURE_HSTS_SECONDS = 31_536_000 if _configuration.https else 0
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
DATA_UPLOAD_MAX_MEMORY_SIZE = _configuration.max_body_bytes

_CSP_DIRECTIVES = {
    "default-src": [SELF],
    "script-src": [SELF, NONCE],
    "style-src": [SELF, UNSAFE_INLINE],
    "img-src": [SELF, "data:"],
    "connect-src": [SELF],
    "object-src": [NONE],
    "base-uri": [SELF],
    "form-action": [SELF],
    "frame-ancestors": [NONE],
}
CONTENT_SECURITY_POLICY = {"DIRECTIVES": _CSP_DIRECTIVES}
#: The admin's theme evaluates its Alpine expressions.
ADMIN_CONTENT_SECURITY_POLICY = {
    **_CSP_DIRECTIVES,
    "script-src": [SELF, UNSAFE_EVAL, UNSAFE_INLINE],
}

UNFOLD = admin_theme.UNFOLD

CACHES = {
    "default": {
        "BACKEND": "django.core.cache.backends.redis.RedisCache",
        "LOCATION": store.url(),
        "KEY_PREFIX": "cache",
        "OPTIONS": {
            "serializer": "signalbox.json_cache.JsonSerializer",
            "max_connections": store.MOST_CONNECTIONS,
            # A Valkey that hangs must not hang every request with it.
            "socket_timeout": store.SOCKET_TIMEOUT_S,
            "socket_connect_timeout": store.SOCKET_TIMEOUT_S,
        },
    }
}
CHANNEL_LAYERS = {
    "default": {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [store.url()]},
    }
}

CELERY_BROKER_URL = store.celery_url()
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_SERIALIZER = "json"
CELERY_ACCEPT_CONTENT = ["json"]
CELERY_TIMEZONE = "UTC"

try:
    _mail_server = mail_server(_configuration.email_url)
except MailUrlError as error:
    raise SystemExit(str(error)) from None
# Without a host no e-mail is sent: accounts.budget_mail asks for one first.
EMAIL_HOST, EMAIL_PORT = _mail_server.host, _mail_server.port
EMAIL_HOST_USER, EMAIL_HOST_PASSWORD = _mail_server.user, _mail_server.password
EMAIL_USE_SSL, EMAIL_USE_TLS = _mail_server.tls, _mail_server.starttls
EMAIL_TIMEOUT = 10
DEFAULT_FROM_EMAIL = _configuration.email_from

STATIC_URL = "static/"
STATIC_ROOT = _configuration.state_dir / "static"
STATICFILES_DIRS = [("vendor", _configuration.state_dir / "vendor")]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.FileSystemStorage"},
    "staticfiles": {"BACKEND": "signalbox.static_files.StaticFilesStorage"},
}

LANGUAGE_CODE = "en"
TIME_ZONE = _configuration.time_zone
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [],
    "DEFAULT_PERMISSION_CLASSES": [],
    "UNAUTHENTICATED_USER": None,
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["rest_framework.parsers.JSONParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "inference.api.errors.exception_handler",
}
SPECTACULAR_SETTINGS = {
    "TITLE": "Signalbox",
    "DESCRIPTION": "OpenAI's API over Apple MLX, with lanes by right.",
    "VERSION": "0.1.0",
    # What pydantic speaks.
    "OAS_VERSION": "3.1.1",
    "SERVE_INCLUDE_SCHEMA": False,
    "POSTPROCESSING_HOOKS": [
        "drf_spectacular.hooks.postprocess_schema_enums",
        "inference.api.openapi.describe_endpoints",
    ],
    # No badge from the validator's web site.
    "SWAGGER_UI_SETTINGS": {"deepLinking": True, "validatorUrl": None},
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
}

LOGGING_CONFIG = None
logging_settings(_configuration.log_level, _configuration.log_format)
