"""Runs a command that ends when the process that started it is gone, however that died.

Run as a script, with nothing but the standard library, before the command itself:
``launcher.py PARENT SIGNAL [NAME=VALUE ...] -- COMMAND …``. On Linux the kernel keeps the promise and the launcher
becomes the command; elsewhere it stays, watches its parent, and passes signals on.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from types import FrameType

_PR_SET_PDEATHSIG = 1
_WATCH_S = 0.5


def launch(parent: int, signal_number: int, command: list[str]) -> int:
    """Become ``command``, or run it; ``signal_number`` is what it gets when ``parent`` is gone."""
    run = _become if sys.platform == "linux" else _watch
    return run(parent, signal_number, command)


def _become(parent: int, signal_number: int, command: list[str]) -> int:
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() == parent:
        os.execvp(command[0], command)
    return 1  # the parent was gone before the promise was made


def _watch(parent: int, signal_number: int, command: list[str]) -> int:
    child = subprocess.Popen(command)

    def pass_on(number: int, frame: FrameType | None) -> None:
        child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    told = False
    while True:
        try:
            return child.wait(_WATCH_S)
        except subprocess.TimeoutExpired:
            if os.getppid() != parent and not told:
                told = True
                child.send_signal(signal_number)


def main(arguments: list[str]) -> int:
    split = arguments.index("--")
    parent, signal_number, *settings = arguments[:split]
    for setting in settings:
        name, _, value = setting.partition("=")
        os.environ[name] = value
    status = launch(int(parent), int(signal_number), arguments[split + 1 :])
    # A command that a signal ended has a negative status here; a shell says 128 + n.
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
