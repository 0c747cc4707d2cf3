"""What set-up says while it works: one line a step, and progress below it on a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import Self

_INTERVAL_S = 0.1
_WIDTH = 100


class Step:
    """One step that takes a while: ``with Step("Installing …") as step: step.progress("3 of 9")``."""

    def __init__(self, title: str) -> None:
        self.title = title
        self._terminal = sys.stdout.isatty()
        self._started = time.monotonic()
        self._shown = 0.0

    def __enter__(self) -> Self:
        print(f"» {self.title}", flush=True)
        return self

    def progress(self, text: str) -> None:
        """Where the step is. On a terminal the line is rewritten; in a log every tenth second has one."""
        now = time.monotonic()
        if not text:
            return
        if now - self._shown < (_INTERVAL_S if self._terminal else 10.0):
            return
        self._shown = now
        line = f"  {text}"[:_WIDTH]
        if self._terminal:
            sys.stdout.write(f"\r{line:<{_WIDTH}}")
        else:
            sys.stdout.write(f"{line}\n")
        sys.stdout.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._terminal and self._shown:
            sys.stdout.write(f"\r{'':<{_WIDTH}}\r")
        if error is None:
            print(f"  done in {time.monotonic() - self._started:.0f} s", flush=True)
