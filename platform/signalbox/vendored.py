"""The few files of others that the chat page runs in the browser, copied from npm's packages at set-up.

They are never committed and never fetched by a browser from anywhere but this site.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

#: Name under ``vendor/`` in the static files → the package's file.
FILES: Final = {
    "marked.js": "marked/lib/marked.esm.js",
    "dompurify.js": "dompurify/dist/purify.es.mjs",
    "highlight.js": "@highlightjs/cdn-assets/es/highlight.min.js",
    "licences/marked.txt": "marked/LICENSE",
    "licences/dompurify.txt": "dompurify/LICENSE",
    "licences/highlight.txt": "@highlightjs/cdn-assets/LICENSE",
}

_SOURCE_MAP: Final = re.compile(rb"^//# sourceMappingURL=.*\n?", re.MULTILINE)


class MissingPackagesError(RuntimeError):
    """The packages are not installed; the message says how they come."""


def copy(node_modules: Path, destination: Path) -> list[Path]:
    """Copy every file that is not there already as it should be; returns what was written.

    Each is written beside its place and renamed into it: a server that reads meanwhile sees the old or the new
    file, whole. Raises ``MissingPackagesError``.
    """
    written = []
    for name, source in FILES.items():
        path = node_modules / source
        if not path.is_file():
            raise MissingPackagesError(
                f"{path} is missing: run `npm ci` beside package.json, then this again"
            )
        # The maps are not copied, and a reference to a missing one is an error to the static files' storage.
        content = _SOURCE_MAP.sub(b"", path.read_bytes())
        target = destination / name
        if target.is_file() and target.read_bytes() == content:
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        draft = target.with_name(f".{target.name}.{os.getpid()}")
        draft.write_bytes(content)
        draft.replace(target)
        written.append(target)
    return written
