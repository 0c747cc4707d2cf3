from __future__ import annotations

import os
import subprocess
import sys

import pytest

from signalbox.configuration import ROOT, Configuration
from signalbox.mail_server import MailServer, MailUrlError, mail_server


@pytest.mark.parametrize(
    ("url", "server"),
    [
        ("", MailServer()),
        ("smtp://localhost", MailServer(host="localhost", port=25)),
        ("smtp://10.0.0.7:2525/", MailServer(host="10.0.0.7", port=2525)),
        (
            "smtp://robot:secret@mail.example.com",
            MailServer(host="mail.example.com", port=587, user="robot", password="secret", starttls=True),
        ),
        (
            "smtps://robot%40example.com:p%2Fw%3A@mail.example.com",
            MailServer(
                host="mail.example.com", port=465, user="robot@example.com", password="p/w:", tls=True
            ),
        ),
        ("smtps://mail.example.com:4650", MailServer(host="mail.example.com", port=4650, tls=True)),
    ],
)
def test_a_url_names_a_mail_server(url: str, server: MailServer) -> None:
    assert mail_server(url) == server


@pytest.mark.parametrize(
    "url",
    [
        "robot:s3cret@mail.example.com",
        "https://robot:s3cret@mail.example.com",
        "smtp://robot:s3cret@",
        "smtp://robot:s3cret@host:port",
        "smtp://robot:s3cret@host/path",
        "smtp://robot:s3cret/@host",
    ],
)
def test_what_names_none_is_said_without_its_password(url: str) -> None:
    with pytest.raises(MailUrlError, match="SIGNALBOX_EMAIL_URL") as error:
        mail_server(url)
    assert "s3cret" not in str(error.value)


def test_a_password_is_in_no_repr() -> None:
    url = "smtp://robot:secret@mail.example.com"
    assert "secret" not in repr(mail_server(url))
    assert "secret" not in repr(Configuration(email_url=url))


def test_a_process_with_a_wrong_url_ends_with_one_line_that_does_not_repeat_it() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "manage.py"), "check"],
        env={**os.environ, "SIGNALBOX_EMAIL_URL": "smtp://robot:sec/ret@mail"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode != 0
    assert done.stderr.startswith("SIGNALBOX_EMAIL_URL names no mail server")
    assert "sec/ret" not in done.stderr + done.stdout
