"""The peer: mlx-lm's own batch generation, called directly in a process of its own, on the same BLAS and with the
platform's attention: what is asked is what the platform around it costs.

Reads one JSON request a line (``{"prompts": [[ids], …], "max_tokens": n}``), answers one JSON line with the times
(seconds since it began) at which each prompt's tokens came. Stays up, so that runs of it can alternate with runs of
the platform.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path


def main(model_directory: str, blas_directory: str) -> None:
    from inference.engine.blas import load_blas

    blas = load_blas(Path(blas_directory))
    from mlx_lm import load
    from mlx_lm.generate import BatchGenerator

    from inference.engine.cpu_attention import use_cpu_attention

    use_cpu_attention()
    model, tokenizer = load(model_directory)[:2]
    print(json.dumps({"ready": True, "blas": blas.name}), flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        generator = BatchGenerator(
            model,
            stop_tokens=[[token] for token in tokenizer.eos_token_ids],
            completion_batch_size=64,
            prefill_batch_size=8,
        )
        started = time.perf_counter()
        uids = generator.insert(request["prompts"], [request["max_tokens"]] * len(request["prompts"]))
        arrivals: dict[int, list[float]] = {uid: [] for uid in uids}
        running = len(uids)
        while running:
            for response in generator.next_generated():  # type: ignore[no-untyped-call]
                arrivals[response.uid].append(time.perf_counter() - started)
                running -= response.finish_reason is not None
        generator.close()  # type: ignore[no-untyped-call]
        print(json.dumps({"arrivals": list(arrivals.values())}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
