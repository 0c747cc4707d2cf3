"""The site's web process as ``manage.py web`` starts it, but with little patience for a client that takes nothing: that
is cut after a few seconds, and neither the system nor the process keeps much for it, behind which nobody would notice.

How much a generation of so many tokens is in bytes depends on the machine: where speculation pays, one event brings
several of them.
"""

from __future__ import annotations

import os
import socket
from functools import partial

from django.core.management import execute_from_command_line

from signalbox import server
from signalbox.http_channel import HttpChannel

STALLED_S = 3.0
_SEND_BUFFER = 4096
_PUSH_BACK = 16 * 1024


class ShallowChannel(HttpChannel):
    def connectionMade(self) -> None:  # noqa: N802 — Twisted's name
        self.transport.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        super().connectionMade()


def main() -> None:
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "signalbox.settings")
    server.HttpChannel = ShallowChannel  # type: ignore[misc]
    server.Server = partial(server.Server, stalled_s=STALLED_S, push_back=_PUSH_BACK)  # type: ignore[assignment,misc]
    execute_from_command_line(["manage.py", "web"])


if __name__ == "__main__":
    main()
