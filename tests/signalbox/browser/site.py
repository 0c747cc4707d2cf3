"""A running site whose model's answers the test writes itself, word by word: web, database and Valkey are real."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from signalbox import vendored
from signalbox.configuration import ROOT
from signalbox.supervision import embedded_valkey
from tests.fixtures.live_stack import LiveStack

if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext

USER = "ada"
PASSWORD = "a signal is a promise"
MODEL = "tiny/model"

_PEOPLE = """
from django.contrib.auth.hashers import make_password

from accounts import members, tenants, users
from accounts.models import Lane, Role, User
from accounts.principal import Actor
from inference.models import LanguageModel

actor = Actor.system("browser tests")
# Hashed once: a password's hash is made to take long.
hashed = make_password({password!r})

def person(name, tenant=None, role=Role.MEMBER):
    user = User.objects.create(username=name, password=hashed)
    if tenant:
        members.add(tenant=tenant, user=user, role=role, actor=actor)
    return user

def tenant(name, slug, lanes):
    return tenants.create(name=name, slug=slug, actor=actor, lanes=Lane.objects.filter(name__in=lanes))

works = tenant("Works", "works", ["high", "normal", "low"])
yard = tenant("Yard", "yard", ["low"])
ada = person({user!r}, works)
members.add(tenant=yard, user=ada, role=Role.MEMBER, actor=actor)
person("brunel", works)
person("visitor", works, Role.VIEWER)
person("fresh")
LanguageModel.objects.create(
    name={model!r}, directory={directory!r}, architecture="llama", context_length=4096, has_chat_template=True,
    dtype="float32", size_bytes=1, checksum="c0ffee" * 10,
)
"""

_SESSION = """
from django.test import Client
from accounts.models import User
client = Client()
client.force_login(User.objects.get(username={user!r}))
print(client.cookies["sessionid"].value)
"""


class RemoteHand:
    """The worker's hand, in a process beside the site."""

    def __init__(self, env: dict[str, str]) -> None:
        python_path = f"{ROOT}:{ROOT / 'platform'}"
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.signalbox.browser.hand_process", MODEL],
            env={**env, "PYTHONPATH": python_path, "DJANGO_SETTINGS_MODULE": "signalbox.settings"},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def take(self) -> RemoteRun:
        """Claim the next generation, when there is one."""
        return RemoteRun(self, self.obey("take"))

    def obey(self, verb: str, *arguments: Any, run: str | None = None) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        command = {"verb": verb, "arguments": arguments, **({"run": run} if run else {})}
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert "error" not in answer, f"{verb}: {answer['error']}"
        return answer["result"]

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()


class RemoteRun:
    """One claimed generation, as in ``tests.inference.api.hand.Run``."""

    def __init__(self, hand: RemoteHand, generation: str) -> None:
        self._hand = hand
        self.generation = generation

    def say(self, *texts: str) -> None:
        self._hand.obey("say", *texts, run=self.generation)

    def prefill(self, done: int) -> None:
        self._hand.obey("prefill", done, run=self.generation)

    def finish(self, reason: str = "stop") -> None:
        self._hand.obey("finish", reason, run=self.generation)

    def fail(self, code: str, message: str) -> None:
        self._hand.obey("fail", code, message, run=self.generation)

    def cancelled(self) -> str:
        """What it is told to end for, once it is told."""
        return str(self._hand.obey("cancelled", run=self.generation))

    def end_cancelled(self, reason: str) -> None:
        self._hand.obey("end_cancelled", reason, run=self.generation)


class Site(LiveStack):
    """Web and Valkey, a few people, and no worker but the test's hand."""

    hand: RemoteHand

    def open(self, state: Path) -> None:
        """Start on a copy of a prepared ``state`` directory."""
        shutil.copytree(state, self.state_dir)
        embedded_valkey.prepare(self.configuration.valkey_dir, self.configuration.valkey_socket)
        self.valkey.start()
        self.web.start(wait=False)
        self.hand = RemoteHand(self.env)
        self.web.wait_until_ready()

    def let_in(self, context: BrowserContext, user: str) -> None:
        """Sign ``user`` in without the form, unless that is tested: checking a password takes long."""
        session = self.python(_SESSION.format(user=user)).strip()
        context.add_cookies([{"name": "sessionid", "value": session, "url": self.base_url}])

    def forget_everything(self) -> None:
        """End what is under way, and give everybody back what they had at the start."""
        self.hand.obey("forget")

    def close(self) -> None:
        if hasattr(self, "hand"):
            self.hand.kill()
        self.shut_down()


def prepare(directory: Path, database: Path, tokenizer_directory: Path) -> None:
    """Make the state directory ``state`` in ``directory``: static files, and people in a copy of ``database``."""
    site = Site(directory)
    vendored.copy(ROOT / "node_modules", site.state_dir / "vendor")
    shutil.copy(database, site.state_dir)
    people = {"user": USER, "password": PASSWORD, "model": MODEL, "directory": str(tokenizer_directory)}
    try:
        site.manage("collectstatic", "--no-input", "--verbosity", "0")
        site.python(_PEOPLE.format(**people))
    finally:
        site.console.close()


def open_site(state: Path) -> Site:
    """A running site in a temporary directory, on a copy of the prepared ``state``."""
    site = Site(Path(tempfile.mkdtemp(prefix="sb-site-")))
    try:
        site.open(state)
    except BaseException:
        sys.stderr.write(site.logs() + "\n")
        site.close()
        raise
    return site
