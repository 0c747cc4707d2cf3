"""Every setting that an operator can make from outside, and nowhere else.

This is the only module that reads the environment. The reference in ``docs/configuration.md`` is
generated from these declarations (``manage.py configuration_reference``), so a description
here is what the operator reads.
"""

from __future__ import annotations

import hashlib
import tempfile
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic import AliasChoices, Field, ValidationError, field_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

#: The checkout: where ``manage.py`` is.
ROOT = Path(__file__).resolve().parents[2]

_LONGEST_SOCKET_PATH = 100


class Configuration(BaseSettings):
    """The installation's settings; environment names are the field's in capitals after ``SIGNALBOX_``."""

    model_config = SettingsConfigDict(env_prefix="SIGNALBOX_", extra="ignore", frozen=True)

    state_dir: Path = Field(
        default=ROOT / ".signalbox",
        description="Where everything lives that must be kept: database, Valkey data, models, secrets.",
    )
    database_url: str = Field(
        default="",
        validation_alias=AliasChoices("DATABASE_URL", "SIGNALBOX_DATABASE_URL", "database_url"),
        description="`postgres://user:password@host/name`, or empty for SQLite in the state directory.",
    )
    valkey_url: str = Field(
        default="",
        validation_alias=AliasChoices("VALKEY_URL", "SIGNALBOX_VALKEY_URL", "valkey_url"),
        description="`redis://…`, `rediss://…` or `unix://…` of your own Valkey or Redis (7.2 or newer); empty: "
        "the embedded server in the state directory.",
    )
    valkey_max_memory_mib: int = Field(
        default=1024,
        ge=64,
        description="Memory of the embedded Valkey, in MiB. From 80 % of it on nothing new is admitted (503), so that "
        "what runs can go on. Your own server has its own `maxmemory`.",
    )
    host: str = Field(default="127.0.0.1", description="Address that the web server listens on.")
    port: int = Field(default=8000, ge=1, le=65535, description="Port that the web server listens on.")
    allowed_hosts: Annotated[list[str], NoDecode] = Field(
        default=["localhost", "127.0.0.1", "[::1]"],
        description="Host names under which the site may be reached, separated by commas. Others get 400.",
    )
    trusted_origins: Annotated[list[str], NoDecode] = Field(
        default=[],
        description="Further origins (`https://chat.example.com`) that may post forms and open chat sockets, "
        "separated by commas. The site's own origin always may.",
    )
    trusted_proxies: Annotated[list[str], NoDecode] = Field(
        default=[],
        description="Addresses or networks of proxies whose `X-Forwarded-For` is believed, separated by commas.",
    )
    https: bool = Field(
        default=False,
        description="The site is reached over HTTPS (through a proxy): cookies are then sent over HTTPS only.",
    )
    site_url: str = Field(
        default="",
        description="Where people reach the site, as in `https://chat.example.com`: e-mails lead there. Empty: they "
        "name no address.",
    )
    email_url: str = Field(
        default="",
        repr=False,
        description="Mail server, `smtps://user:password@host:port`, or `smtp://…`: that begins TLS before it logs in, "
        "and without a user speaks plain text. Empty: no e-mail is sent.",
    )
    email_from: str = Field(default="signalbox@localhost", description="Sender of e-mails.")
    webhook_private_hosts: Annotated[list[str], NoDecode] = Field(
        default=[],
        description="Host names, addresses and networks that webhooks may be sent to although they are not public, "
        "separated by commas.",
    )
    webhook_ca_file: str = Field(
        default="",
        description="PEM file of further authorities whose certificates webhook receivers may show, as your own "
        "network's. The system's are trusted too.",
    )
    debug: bool = Field(default=False, description="Django's debug mode. Never in production.")
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="Least level that is logged."
    )
    log_format: Literal["console", "json"] = Field(
        default="console", description="`console` for people, `json` for machines."
    )
    time_zone: str = Field(
        default="UTC", description="Time zone of the admin's dates, as in `Europe/Berlin`."
    )
    max_body_bytes: int = Field(
        default=8 * 1024 * 1024, ge=1024, description="Largest request body, in bytes; more is answered 413."
    )
    log_in_failures_per_account: int = Field(
        default=10,
        ge=1,
        description="Failed log-ins after which further ones to the same account are refused (429) until the window "
        "ends.",
    )
    log_in_failures_per_address: int = Field(
        default=50,
        ge=1,
        description="The same for one address, whatever the account. Behind a proxy this needs "
        "`SIGNALBOX_TRUSTED_PROXIES`: else everybody has the proxy's address.",
    )
    log_in_window_seconds: float = Field(
        default=900.0,
        ge=1,
        description="How long after the first of them failed log-ins are counted.",
    )
    queue_limit: int = Field(
        default=1000,
        ge=1,
        description="Generations that may wait per model; more are answered 429 `queue_full`.",
    )
    lease_seconds: float = Field(
        default=15.0,
        gt=0,
        description="How long a worker may stay silent before its generations go back to the queue. At least twice "
        "what the longest prefill chunk takes: a worker claims nothing while a tick takes more than half of it.",
    )
    drain_seconds: float = Field(
        default=10.0,
        ge=0,
        description="How long a stopping worker lets its generations finish before it gives them back to the queue, "
        "where the next worker goes on with them.",
    )
    detach_grace_seconds: float = Field(
        default=60.0,
        gt=0,
        description="How long a generation runs on without a reader before it is cancelled.",
    )
    token_log_seconds: float = Field(
        default=900.0, gt=0, description="How long a finished generation's events can be replayed."
    )
    sweep_seconds: float = Field(
        default=10.0,
        gt=0,
        description="How often accepted generations that are not in the queue are looked for and put back.",
    )
    generation_timeout_seconds: float = Field(
        default=3600.0,
        gt=0,
        description="Age at which a generation that still waits or runs is ended as `expired`.",
    )
    request_retention_days: int = Field(
        default=30,
        ge=1,
        description="Days that a finished generation's token ids, parameters and output are kept.",
    )
    log_retention_days: int = Field(
        default=14, ge=1, description="Days that the processes' old logs in the state directory are kept."
    )
    audit_anchor_file: Path = Field(
        default_factory=lambda data: data["state_dir"] / "audit" / "checkpoints.jsonl",
        description="File that every signed checkpoint of the audit is appended to. It proves most on another "
        "machine's disk: its directory must be there.",
    )
    audit_anchor_url: str = Field(
        default="",
        repr=False,
        description="Where every signed checkpoint of the audit is sent: an `https://` URL, by the rules of webhooks. "
        "Empty: nowhere.",
    )
    audit_archive_dir: Path = Field(
        default_factory=lambda data: data["state_dir"] / "audit" / "archives",
        description="Where old segments of the audit are moved, if they are to be (the audit's settings in the admin).",
    )
    blas: Literal["auto", "stock"] = Field(
        default="auto",
        description="On a Linux CPU: `auto` takes the fastest BLAS there is, `stock` leaves MLX its own slow one, "
        "whose last bits do not depend on the batch.",
    )
    blas_threads: int = Field(
        default=0,
        ge=0,
        description="Threads of that BLAS; 0: as many as the worker may use processors, less one if they are more "
        "than two. Set 1 where busy programs share the processors: the threads wait for each other spinning.",
    )
    default_model: str = Field(
        default="smollm2-135m-instruct", description="Model that `make up` prepares and serves first."
    )

    @field_validator(
        "allowed_hosts", "trusted_origins", "trusted_proxies", "webhook_private_hosts", mode="before"
    )
    @classmethod
    def _split_commas(cls, value: object) -> object:
        if isinstance(value, str):
            return [part.strip() for part in value.split(",") if part.strip()]
        return value

    @property
    def models_dir(self) -> Path:
        return self.state_dir / "models"

    @property
    def secrets_dir(self) -> Path:
        return self.state_dir / "secrets"

    @property
    def valkey_dir(self) -> Path:
        return self.state_dir / "valkey"

    @property
    def valkey_socket(self) -> Path:
        """The embedded server's socket. Socket paths are limited to about 100 bytes: a deep state directory
        gets one in the system's temporary directory instead, named after it."""
        socket = self.valkey_dir / "valkey.sock"
        if len(str(socket)) <= _LONGEST_SOCKET_PATH:
            return socket
        name = hashlib.sha256(str(self.state_dir).encode()).hexdigest()[:16]
        return Path(tempfile.gettempdir()) / f"signalbox-{name}" / "valkey.sock"

    @property
    def blas_dir(self) -> Path:
        return self.state_dir / "blas"

    @property
    def pools_dir(self) -> Path:
        return self.state_dir / "pools"

    @property
    def logs_dir(self) -> Path:
        return self.state_dir / "logs"


@cache
def configuration() -> Configuration:
    """The settings of this process, read once. A value that cannot be ends the process with a line for each."""
    try:
        return Configuration()
    except ValidationError as error:
        mistakes = [
            _mistake(mistake)
            for mistake in error.errors()
            # What follows from a mistake, and is none.
            if mistake["type"] != "default_factory_not_called"
        ]
        raise SystemExit("\n".join(mistakes)) from None


def _mistake(mistake: ErrorDetails) -> str:
    name = str(mistake["loc"][0])
    variable = name if name.isupper() else f"SIGNALBOX_{name.upper()}"
    field = Configuration.model_fields.get(name)
    wanted = _wanted(field) if field else ""
    return f"The environment variable {variable} cannot be {mistake['input']!r}: " + (
        f"it must be {wanted}." if wanted else f"{mistake['msg']}."
    )


def _wanted(field: FieldInfo) -> str:
    """What a setting's value has to be, in words; empty where any text would do."""
    if choices := get_args(field.annotation) if get_origin(field.annotation) is Literal else ():
        return " or ".join(str(choice) for choice in choices)
    kinds: dict[Any, str] = {int: "a whole number", float: "a number", bool: "true or false"}
    kind = kinds.get(field.annotation, "")
    limits = {
        name: getattr(limit, name)
        for limit in field.metadata
        for name in ("ge", "gt", "le")
        if hasattr(limit, name)
    }
    if {"ge", "le"} <= limits.keys():
        return f"{kind} from {limits['ge']:g} to {limits['le']:g}"
    words = {"ge": "at least", "gt": "more than"}
    return " ".join([kind, *(f"{word} {limits[name]:g}" for name, word in words.items() if name in limits)])
