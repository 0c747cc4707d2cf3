"""What each process costs: memory, and CPU time per streamed token.

    python -m benchmarks.process_costs

Runs the platform as ``manage.py up`` does, streams answers to 8 clients, and reads from the operating system
what each process used meanwhile. Memory is the proportional set size where the system tells it (Linux), else
the resident set size.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import psutil

from benchmarks import processes
from benchmarks.arguments import parser as arguments_parser
from benchmarks.openai_stream import StreamTiming, stream_chat
from benchmarks.prompts import PROMPTS, chat
from benchmarks.trust import refuse_when_busy, spread

_ROLES = ("valkey-server", "manage.py web", "manage.py worker", "manage.py celery", "manage.py up")


def main() -> None:
    parser = arguments_parser(__doc__)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    refuse_when_busy()
    with processes.platform(arguments.state, arguments.model) as platform:
        key = platform.key()

        def stream() -> int:
            return sum(
                timing.completion_tokens
                for timing in asyncio.run(_streams(platform.port, arguments.model, arguments.max_tokens, key))
            )

        stream()
        running = _by_role(platform.state_dir)
        costs: dict[str, list[float]] = {role: [] for role in running}
        for _ in range(arguments.repeats):
            before = {role: _cpu_seconds(found) for role, found in running.items()}
            tokens = stream()
            for role, found in running.items():
                costs[role].append(1000 * (_cpu_seconds(found) - before[role]) / tokens)
        print("| process | memory, MiB | CPU ms a token (median, range) |")
        print("| --- | --- | --- |")
        for role, found in running.items():
            memory = sum(_memory(process) for process in found) / 2**20
            print(f"| {role} ({len(found)}) | {memory:.0f} | {spread(costs[role], 2)} |")


async def _streams(port: int, model: str, max_tokens: int, key: str) -> list[StreamTiming]:
    return await asyncio.gather(
        *(stream_chat(port, model, chat(prompt), max_tokens, key) for prompt in PROMPTS)
    )


def _by_role(state_dir: Path) -> dict[str, list[psutil.Process]]:
    """The installation's processes, by what they do. Raises ``RuntimeError`` when one is missing."""
    found: dict[str, list[psutil.Process]] = {role: [] for role in _ROLES}
    me = psutil.Process()
    for process in me.children(recursive=True):
        words = " ".join(process.cmdline())
        for role in _ROLES:
            if role in words:
                found[role].append(process)
    missing = [role for role, members in found.items() if not members]
    if missing:
        raise RuntimeError(f"no process of {', '.join(missing)} runs on {state_dir}")
    return found


def _cpu_seconds(found: list[psutil.Process]) -> float:
    return float(sum(process.cpu_times().user + process.cpu_times().system for process in found))


def _memory(process: psutil.Process) -> int:
    full = process.memory_full_info()
    return int(getattr(full, "pss", full.rss))


if __name__ == "__main__":
    main()
