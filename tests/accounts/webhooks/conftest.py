"""Receivers, and a resolver that knows the tests' host names."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from signalbox.configuration import configuration
from tests.accounts.webhooks.receiver import HOST, OTHER_HOST, Authority, Receiver

Allow = Callable[..., None]


@pytest.fixture(scope="session")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def new_receiver(authority: Authority) -> Iterator[Callable[..., Receiver]]:
    """Starts receivers, which stop with the test. Their certificates are of ``HOST``, unless ``names`` says else."""
    started: list[Receiver] = []

    def start(*names: str, **fields: Any) -> Receiver:
        receiver = Receiver(authority.context_for(*(names or (HOST,))), **fields).start()
        started.append(receiver)
        return receiver

    yield start
    for receiver in started:
        receiver.stop()


@pytest.fixture
def receiver(new_receiver: Callable[..., Receiver]) -> Receiver:
    return new_receiver()


@pytest.fixture(autouse=True)
def allow(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> Allow:
    """Trusts the tests' authority and lets nothing private be called, until a test names hosts that may be."""

    def set_(*hosts: str) -> None:
        changed = configuration().model_copy(
            update={"webhook_private_hosts": list(hosts), "webhook_ca_file": str(authority.ca_file)}
        )
        for module in ("sending", "endpoints"):
            monkeypatch.setattr(f"accounts.webhooks.{module}.configuration", lambda: changed)

    set_()
    return set_


class Resolver:
    """Answers for the tests' names, as often as it is asked; addresses in figures go through to the system's own."""

    def __init__(self) -> None:
        self.addresses: dict[str, list[list[str]]] = {}
        self.asked: list[str] = []
        self._system = socket.getaddrinfo

    def knows(self, host: str, *answers: list[str]) -> None:
        """``host`` has these addresses: the first list at the first question, the last one from then on."""
        self.addresses[host] = list(answers)

    def __call__(self, host: Any, port: Any, *args: Any, **kwargs: Any) -> Any:
        name = host.decode() if isinstance(host, bytes) else str(host)
        if name.replace(".", "").isdigit() or ":" in name:
            return self._system(host, port, *args, **kwargs)
        self.asked.append(name)
        if name not in self.addresses:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        answers = self.addresses[name]
        current = answers.pop(0) if len(answers) > 1 else answers[0]
        return [found for address in current for found in self._system(address, port, *args, **kwargs)]


@pytest.fixture(autouse=True)
def resolver(monkeypatch: pytest.MonkeyPatch) -> Resolver:
    resolver = Resolver()
    for host in (HOST, OTHER_HOST):
        resolver.knows(host, ["127.0.0.1"])
    monkeypatch.setattr(socket, "getaddrinfo", resolver)
    return resolver
