"""The mail server that an operator names by its URL."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

_SMTPS_PORT, _SUBMISSION_PORT, _SMTP_PORT = 465, 587, 25


class MailUrlError(ValueError):
    """The URL names no mail server. The message does not repeat it: it may hold a password."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MailServer:
    """Where e-mail is handed in, and as whom. An empty ``host``: nowhere. At most one of ``tls``, ``starttls``."""

    host: str = ""
    port: int = _SMTP_PORT
    user: str = ""
    password: str = field(default="", repr=False)
    #: TLS from the first byte on.
    tls: bool = False
    #: TLS begun in plain text, before the password is sent.
    starttls: bool = False


def mail_server(url: str) -> MailServer:
    """The server at ``url``; empty: none. Raises ``MailUrlError``.

    ``smtps://`` is TLS from the first byte on, ``smtp://`` with a user STARTTLS, and without one plain text, as to a
    relay on the same machine.
    """
    if not url:
        return MailServer()
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if host is None or parts.scheme not in ("smtp", "smtps") or parts.path not in ("", "/"):
        raise MailUrlError(
            "SIGNALBOX_EMAIL_URL names no mail server. It looks like smtps://user:password@mail.example.com:465 or "
            "smtp://localhost:25; special characters in the user's name and the password are written as %40 for @."
        )
    user = unquote(parts.username or "")
    tls = parts.scheme == "smtps"
    return MailServer(
        host=host,
        port=port or (_SMTPS_PORT if tls else _SUBMISSION_PORT if user else _SMTP_PORT),
        user=user,
        password=unquote(parts.password or ""),
        tls=tls,
        starttls=bool(user) and not tls,
    )
