"""The peer: ``mlx_lm.server``, unchanged, on a chosen BLAS.

``python -m benchmarks.peers.mlx_server MODEL PORT BLAS_DIRECTORY [OPTIONS]`` loads the platform's BLAS first; with an
empty directory it runs as it is installed. The options are the server's own.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main(model_directory: str, port: str, blas_directory: str, *options: str) -> None:
    if blas_directory:
        from inference.engine.blas import load_blas

        load_blas(Path(blas_directory))
    from mlx_lm import server

    own = ["--model", model_directory, "--port", port, "--log-level", "ERROR"]
    sys.argv = ["mlx_lm.server", *own, *options]
    server.main()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main(*sys.argv[1:])
