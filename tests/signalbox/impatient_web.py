"""The site's web process as ``manage.py web`` starts it, but with little patience for a client that takes nothing: that
is cut after a second, and the system takes no megabytes for it, behind which nobody would notice."""

from __future__ import annotations

import os
import socket
from functools import partial

from django.core.management import execute_from_command_line

from signalbox import server
from signalbox.http_channel import HttpChannel

STALLED_S = 1.0
_SEND_BUFFER = 4096


class ShallowChannel(HttpChannel):
    def connectionMade(self) -> None:  # noqa: N802 — Twisted's name
        self.transport.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        super().connectionMade()


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "signalbox.settings")
    server.HttpChannel = ShallowChannel  # type: ignore[misc]
    server.Server = partial(server.Server, stalled_s=STALLED_S)  # type: ignore[assignment,misc]
    execute_from_command_line(["manage.py", "web"])


if __name__ == "__main__":
    main()
