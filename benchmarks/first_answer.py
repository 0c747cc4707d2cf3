"""Time from `make up` in a clean clone to the first answer, and again for a second `make up`.

    python -m benchmarks.first_answer

Clones the checkout's HEAD into a temporary folder and runs the README's command there: packages are
installed from their index (or its local cache), the model is prepared, and a first chat completion is asked
for with the key that `make up` printed.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from benchmarks import processes
from benchmarks.arguments import parser as arguments_parser
from benchmarks.openai_stream import stream_chat
from benchmarks.prompts import chat

_TIMEOUT_S = 1800.0
#: What set-up brings.
_MODEL = "smollm2-135m-instruct"


def main() -> None:
    parser = arguments_parser(__doc__, installed=False)
    parser.add_argument("--max-tokens", type=int, default=32, help="of the answer")
    max_tokens = parser.parse_args().max_tokens
    folder = Path(tempfile.mkdtemp(prefix="signalbox-clone-"))
    clone = folder / "signalbox"
    try:
        subprocess.run(["git", "clone", "--quiet", str(processes.ROOT), str(clone)], check=True)
        first, key = _run(clone, max_tokens, key="")
        second, _ = _run(clone, max_tokens, key)
        print("| run | to the site | to the first token | to the end of the answer |")
        print("| --- | --- | --- | --- |")
        for name, times in (("first `make up`", first), ("second `make up`", second)):
            print(f"| {name} | " + " | ".join(f"{seconds:.1f} s" for seconds in times) + " |")
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(clone: Path, max_tokens: int, key: str) -> tuple[tuple[float, float, float], str]:
    """Run `make up` once; the three times in seconds, and the key that works."""
    port = processes.free_port()
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("SIGNALBOX_", "VIRTUAL_ENV"))}
    log = clone.parent / "up.log"
    started = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["make", "up"],
            cwd=clone,
            env={**environment, "SIGNALBOX_PORT": str(port)},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        while "Signalbox runs at" not in (text := log.read_text(errors="replace")):
            if process.poll() is not None or time.perf_counter() - started > _TIMEOUT_S:
                raise RuntimeError(f"`make up` did not come up:\n{text[-3000:]}")
            time.sleep(0.1)
        up = time.perf_counter()
        printed = re.search(r"API key\s+(sb_\S+)\s+\(shown this once", log.read_text(errors="replace"))
        key = printed.group(1) if printed else key
        messages = chat("Why is the sky blue?")
        timing = asyncio.run(stream_chat(port, _MODEL, messages, max_tokens, key))
        return (up - started, timing.arrivals[0] - started, timing.ended - started), key
    finally:
        process.terminate()
        process.wait(120)


if __name__ == "__main__":
    main()
