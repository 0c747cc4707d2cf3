"""A state directory of a test's own: its signing keys, its file of checkpoints, its archives."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from accounts.audit import anchors, archive_files, checkpoints, signing_keys, verification
from signalbox import secret_files
from signalbox.configuration import Configuration, configuration


def settle(monkeypatch: pytest.MonkeyPatch, directory: Path, **changes: Any) -> Configuration:
    """Let everything that has to do with checkpoints use ``directory``, with further settings changed."""
    own = configuration().model_copy(
        update={
            "state_dir": directory,
            "audit_anchor_file": directory / "audit" / "checkpoints.jsonl",
            "audit_archive_dir": directory / "audit" / "archives",
            **changes,
        }
    )
    # Chains are made for times of long ago, or once and put into tests later: without a file.
    monkeypatch.setattr(anchors, "_WRITTEN_WITHIN", timedelta(days=3650))
    for module in (anchors, archive_files, checkpoints, secret_files, signing_keys, verification):
        monkeypatch.setattr(module, "configuration", lambda: own)
    return own
