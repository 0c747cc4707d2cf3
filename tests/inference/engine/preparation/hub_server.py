"""The Hugging Face Hub's protocol on the loopback, as far as downloading a model speaks it."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """One repository, ``team/tiny``, whose branch ``main`` is at ``COMMIT``.

    ``requests`` lists the files that were asked for; ``failing`` names files that answer 500; ``refusal`` is
    the hub's error code for everything.
    """

    repository = "team/tiny"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.requests: list[str] = []
        self.failing: set[str] = set()
        self.refusal: str | None = None
        self.announced: dict[str, str] = {}
        self.endpoint = ""

    def listing(self) -> dict[str, object]:
        siblings = []
        for path in sorted(self.directory.iterdir()):
            entry: dict[str, object] = {"rfilename": path.name, "size": path.stat().st_size, "blobId": "0"}
            if path.suffix == ".safetensors":
                digest = self.announced.get(path.name, hashlib.sha256(path.read_bytes()).hexdigest())
                entry["lfs"] = {"sha256": digest, "size": path.stat().st_size, "pointerSize": 130}
            siblings.append(entry)
        return {"id": self.repository, "sha": COMMIT, "siblings": siblings}


@contextmanager
def hub(directory: Path) -> Iterator[Hub]:
    """Serve ``directory`` as a repository while the context lasts."""
    served = Hub(directory)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            path = self.path.partition("?")[0]
            if served.refusal:
                status = {"RepoNotFound": 404, "RevisionNotFound": 404, "GatedRepo": 403}[served.refusal]
                self._send(status, b"", {"X-Error-Code": served.refusal}, body=body)
            elif re.fullmatch(rf"/api/models/{served.repository}(/revision/(main|{COMMIT}))?", path):
                self._send(200, json.dumps(served.listing()).encode(), {}, body=body)
            elif match := re.fullmatch(rf"/{served.repository}/resolve/{COMMIT}/([\w.-]+)", path):
                self._send_file(match[1], body=body)
            else:
                self._send(404, b"", {"X-Error-Code": "EntryNotFound"}, body=body)

        def _send_file(self, name: str, *, body: bool) -> None:
            if body:
                served.requests.append(name)
                if name in served.failing:
                    self._send(500, b"", {}, body=True)
                    return
            content = (served.directory / name).read_bytes()
            etag = hashlib.sha256(content).hexdigest()
            self._send(200, content, {"X-Repo-Commit": COMMIT, "ETag": f'"{etag}"'}, body=body)

        def _send(self, status: int, content: bytes, headers: dict[str, str], *, body: bool) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            """Quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served.endpoint = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()
