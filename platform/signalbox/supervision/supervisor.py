"""Starts all processes in order, keeps them running, and stops them in order."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from signalbox.supervision.child import Child, ProcessSpec, describe_status
from signalbox.supervision.log_files import Console, LogFile
from signalbox.supervision.process_list import Listed, State
from signalbox.supervision.restarts import Restarts

_POLL_S = 0.1


class StartError(RuntimeError):
    """A process did not come up at the start; the message says which and where its log is."""


class Supervisor:
    """The processes of one installation.

    ``start`` brings some up and returns when they serve; ``run`` restarts those that end until a stop is asked
    for; ``stop`` ends all, in the reverse order of their start. ``changed`` is told of the processes there are,
    whenever one starts, serves or ends.
    """

    def __init__(
        self, console: Console, logs_dir: Path, changed: Callable[[list[Listed]], None] = lambda listed: None
    ) -> None:
        self._console = console
        self._logs_dir = logs_dir
        self._changed = changed
        self._states: dict[Child, State] = {}
        self._stages: list[list[Child]] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._logs: list[LogFile] = []
        self._stopping = asyncio.Event()
        self._forced = False

    def handle_signals(self) -> None:
        """From now on SIGINT, SIGTERM and SIGHUP ask for a stop, and a second one kills what is left."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._signalled, number)

    def stop_asked(self) -> bool:
        return self._stopping.is_set()

    async def start(self, *stages: Sequence[ProcessSpec]) -> None:
        """Start the processes of all ``stages`` side by side; return when all serve, or a stop was asked for.

        A stage is stopped when the ones after it are gone. Raises ``StartError`` when a process ends or does not
        serve in time, or cannot be started at all.
        """
        started = []
        for specs in stages:
            stage = [self._child(spec) for spec in specs]
            self._stages.append(stage)
            started += stage
        for child in started:
            try:
                await child.start()
            except OSError as error:
                raise StartError(f"{child.spec.name} cannot be started: {error}.") from error
            self._note(child, State.STARTING)
        await asyncio.gather(*(self._until_ready(child) for child in started))
        if not self.stop_asked():
            self._keepers += [asyncio.create_task(self._keep(child)) for child in started]

    async def run(self) -> None:
        """Return when a stop was asked for."""
        await self._stopping.wait()

    async def stop(self) -> None:
        """End all processes: the ones started last first, each stage when the one before it is gone."""
        self._stopping.set()
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for stage in reversed(self._stages):
            await asyncio.gather(*(self._stop(child) for child in stage))
        for log in self._logs:
            log.close()

    def _child(self, spec: ProcessSpec) -> Child:
        try:
            log = LogFile(self._logs_dir, spec.name, self._console.say)
        except OSError as error:
            raise StartError(
                f"The log of {spec.name} cannot be opened: {error}. Make room, or make {self._logs_dir} yours."
            ) from error
        self._logs.append(log)
        return Child(spec, self._console, log)

    async def _until_ready(self, child: Child) -> None:
        deadline = time.monotonic() + child.spec.ready_s
        while not self.stop_asked():
            if not child.running:
                raise StartError(
                    f"{child.spec.name} ended with {describe_status(await child.wait())} before it served. "
                    f"It says why in {self._log_path(child)}."
                )
            if await child.spec.ready():
                self._note(child, State.RUNNING)
                return
            if time.monotonic() > deadline:
                raise StartError(
                    f"{child.spec.name} did not serve within {child.spec.ready_s:.0f} s. See {self._log_path(child)}."
                )
            await asyncio.sleep(_POLL_S)

    async def _keep(self, child: Child) -> None:
        """Start a process again whenever it ends, until a stop is asked for."""
        name, restarts = child.spec.name, Restarts()
        while True:
            status = await child.wait()
            delay = restarts.ended(child.lived_s)
            self._note(child, State.RESTARTING)
            self._console.say(
                f"! {name} ended with {describe_status(status)}; it is started again in {delay:.1f} s. Nothing is lost."
            )
            if restarts.repeated:
                self._console.say(
                    f"! {name} has ended {restarts.ends} times in a row: restarting does not mend it. "
                    f"Look at {self._log_path(child)}."
                )
            await asyncio.sleep(delay)
            await self._start_again(child, restarts)
            self._note(child, State.RUNNING)

    async def _start_again(self, child: Child, restarts: Restarts) -> None:
        """Start it, whatever the system lacks for that at first: memory, processes, file descriptors."""
        while True:
            try:
                await child.start()
            except OSError as error:
                delay = restarts.ended(lived_s=0.0)
                self._console.say(
                    f"! {child.spec.name} cannot be started: {error}. It is tried again in {delay:.1f} s."
                )
                await asyncio.sleep(delay)
            else:
                return

    async def _stop(self, child: Child) -> None:
        if self._forced:
            child.signal(signal.SIGKILL)
        self._note(child, State.STOPPING)
        if not await child.stop():
            self._console.say(
                f"! {child.spec.name} did not end within {child.spec.drain_s:.0f} s and was killed."
            )
        self._note(child, None)

    def _note(self, child: Child, state: State | None) -> None:
        """``child`` is in ``state`` now; ``None``: it has ended for good."""
        if state is None:
            self._states.pop(child, None)
        else:
            self._states[child] = state
        self._changed(
            [
                Listed(
                    role=each.spec.role,
                    model=each.spec.model,
                    pid=each.pid or 0,
                    since=each.since,
                    state=its_state,
                )
                for each, its_state in self._states.items()
            ]
        )

    def _signalled(self, number: int) -> None:
        if not self._stopping.is_set():
            self._console.say(
                f"\n{signal.Signals(number).name}: stopping in order. Once more to kill what is left."
            )
            self._stopping.set()
            return
        self._forced = True
        for stage in self._stages:
            for child in stage:
                child.signal(signal.SIGKILL)

    def _log_path(self, child: Child) -> Path:
        return self._logs_dir / f"{child.spec.name}.log"
