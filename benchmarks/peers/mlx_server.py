"""The peer: ``mlx_lm.server``, unchanged, on the platform's BLAS and attention: what is compared is the serving.

``python -m benchmarks.peers.mlx_server MODEL PORT BLAS_DIRECTORY [OPTIONS]`` takes the BLAS from there; with an empty
directory it runs as it is installed. The options are the server's own.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(model_directory: str, port: str, blas_directory: str, *options: str) -> None:
    if blas_directory:
        from inference.engine.blas import load_blas

        load_blas(Path(blas_directory))

        from inference.engine.cpu_attention import use_cpu_attention

        use_cpu_attention()
    from mlx_lm import server

    own = ["--model", model_directory, "--port", port, "--log-level", "ERROR"]
    sys.argv = ["mlx_lm.server", *own, *options]
    server.main()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main(*sys.argv[1:])
