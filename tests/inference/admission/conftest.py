from __future__ import annotations

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from inference.models import LanguageModel
from signalbox.configuration import ROOT
from tests.factories import LanguageModelFactory
from tests.fixtures.database import database_url
from tests.fixtures.live_stack import free_port
from tests.fixtures.processes import ManagedProcess
from tests.inference.engine.tiny_model import CONTEXT_LENGTH


class WebProcess:
    """``manage.py web`` on the test's database and Valkey."""

    def __init__(self, name: str, directory: Path) -> None:
        self.port = free_port()
        self.process = ManagedProcess(
            name,
            [sys.executable, str(ROOT / "manage.py"), "web"],
            env={**os.environ, "DATABASE_URL": database_url(), "SIGNALBOX_PORT": str(self.port)},
            cwd=ROOT,
            log=directory / f"{name}.log",
            ready=self._answers,
        )

    def _answers(self) -> bool:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health/live", timeout=5) as response:
            return bool(response.status == 200)


@pytest.fixture(scope="module")
def web_processes(
    django_db_setup: None, valkey_server: subprocess.Popen[bytes], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[list[WebProcess]]:
    """Two, as behind a balancer. They know nothing of each other but the database and Valkey."""
    directory = tmp_path_factory.mktemp("web")
    webs = [WebProcess(f"web{number}", directory) for number in range(2)]
    try:
        for web in webs:
            web.process.start(wait=False)
        for web in webs:
            web.process.wait_until_ready()
        yield webs
    finally:
        for web in webs:
            web.process.kill()


@pytest.fixture
def model(transactional_db: None, valkey: redis.Redis, tiny_model_dir: Path) -> LanguageModel:
    """An offered model that no worker serves: what is accepted waits."""
    made: LanguageModel = LanguageModelFactory(
        name="tiny", directory=str(tiny_model_dir), context_length=CONTEXT_LENGTH
    )
    return made
