from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import redis
from asgiref.sync import sync_to_async
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from accounts.actors import command_actor
from accounts.bootstrap import bootstrap
from inference.engine.preparation.record import RECORD_NAME
from inference.models import LanguageModel
from signalbox import store
from signalbox.configuration import ROOT, Configuration, configuration
from signalbox.state_directory import StateDirectoryError, check_file, ensure_directory
from signalbox.supervision import addresses, embedded_valkey, processes
from signalbox.supervision.addresses import AddressError
from signalbox.supervision.instance_lock import AlreadyRunningError, InstanceLock
from signalbox.supervision.log_files import Console
from signalbox.supervision.process_list import Listed, ProcessList
from signalbox.supervision.supervisor import StartError, Supervisor
from signalbox.supervision.welcome import welcome


class Command(BaseCommand):
    """Runs the whole installation on this machine: store, database, web, worker, celery."""

    help = "Start everything, keep it running, and stop it in order on Ctrl-C or SIGTERM."
    requires_system_checks: list[str] = []

    def handle(self, *args: Any, **options: Any) -> None:
        settings = configuration()
        lock = InstanceLock(settings.state_dir)
        try:
            _check_directories(settings)
            lock.acquire()
            addresses.check(settings.host, settings.port)
            console = Console()
            if os.geteuid() == 0:
                console.say("! This runs as root. Outside of a container, give it an account of its own.")
            asyncio.run(_up(settings, console))
        except (StateDirectoryError, AlreadyRunningError, AddressError, StartError) as error:
            raise CommandError(str(error)) from error


def _check_directories(settings: Configuration) -> None:
    """Raise ``StateDirectoryError`` for what would keep the supervisor or Valkey from working."""
    ensure_directory(settings.state_dir, "the state directory")
    ensure_directory(settings.logs_dir, "the directory of logs")
    check_file(settings.state_dir / "up.lock", "the supervisor's lock")
    if not settings.valkey_url:
        ensure_directory(settings.valkey_dir, "Valkey's directory")


async def _up(settings: Configuration, console: Console) -> None:
    supervisor = Supervisor(console, settings.logs_dir, _keep_list(settings, console))
    supervisor.handle_signals()
    try:
        await _start(settings, console, supervisor)
        await supervisor.run()
    finally:
        await supervisor.stop()
        console.say("Stopped. All data is kept.")


def _keep_list(settings: Configuration, console: Console) -> Callable[[list[Listed]], None]:
    """Writes what runs to where `manage.py status` finds it. That is of no use to the site, so it cannot hurt it."""
    processes = ProcessList(settings.state_dir)
    url = addresses.site_url(settings.host, settings.port)

    def write(listed: list[Listed]) -> None:
        try:
            processes.write(url, listed)
        except OSError as error:
            console.say(f"! `manage.py status` will not be up to date: {error}.")

    return write


async def _start(settings: Configuration, console: Console, supervisor: Supervisor) -> None:
    """The order: store, database, then web and workers side by side, then celery, and at last the first accounts."""
    if settings.valkey_url:
        await _require_store()
    else:
        console.say("» Starting Valkey")
        embedded_valkey.prepare(settings.valkey_dir, settings.valkey_socket)
        await supervisor.start([processes.valkey(settings)])
    if supervisor.stop_asked():
        return
    console.say("» Bringing the database up to date")
    models = await sync_to_async(_prepare_database)(settings, console)
    if supervisor.stop_asked():
        return
    served = ", ".join(models) or "no model"
    console.say(f"» Starting web and the worker of {served}")
    workers = [processes.worker(model, settings) for model in models]
    await supervisor.start(workers, [processes.web(settings)])
    if not supervisor.stop_asked():
        # Nobody waits for it: beside the others its start would only delay theirs.
        await supervisor.start([processes.celery()])
        # Last, so that its secrets, which are stored nowhere, are made only when they are shown.
        first = await sync_to_async(bootstrap)(command_actor("up"))
        url = addresses.site_url(settings.host, settings.port)
        console.say(welcome(url, first, _shown_model(settings, models), str(settings.logs_dir)))


def _prepare_database(settings: Configuration, console: Console) -> list[str]:
    """Migrate, and list the models to serve."""
    call_command("migrate", verbosity=0, interactive=False)
    if not LanguageModel.objects.exists():
        _offer_prepared(settings, console)
    return list(LanguageModel.objects.filter(retired_at=None).values_list("name", flat=True))


def _offer_prepared(settings: Configuration, console: Console) -> None:
    """Offer what is prepared already: the database that knew these models was deleted, or is another one now."""
    for record in sorted(settings.models_dir.glob(f"[!.]*/{RECORD_NAME}")):
        name = record.parent.name
        console.say(f"» Offering {name}, which is prepared in {settings.models_dir}")
        # In a process of its own, for it loads what runs models, and this one lives as long as the site.
        add = [sys.executable, "manage.py", "model", "add", name, "--if-missing"]
        done = subprocess.run(add, cwd=ROOT, capture_output=True, text=True)
        if done.returncode:
            console.say(f"! It is not offered: {done.stderr.strip()}")


def _shown_model(settings: Configuration, models: list[str]) -> str | None:
    if settings.default_model in models:
        return settings.default_model
    return models[0] if models else None


async def _require_store() -> None:
    """Raise ``StartError`` when the operator's own Valkey does not answer."""
    try:
        await sync_to_async(store.sync_client().ping)()
    except redis.RedisError as error:
        raise StartError(
            f"Valkey at VALKEY_URL cannot be reached: {error}. Check the address and the password."
        ) from error
