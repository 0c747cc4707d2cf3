"""``manage.py worker``: the process that owns one model."""

from __future__ import annotations

import os
import signal
from argparse import ArgumentParser
from pathlib import Path
from types import FrameType
from typing import Any

import structlog
from django import db
from django.core.management.base import BaseCommand, CommandError
from django.db.models import QuerySet

from inference.management.serving import load_engine
from inference.models import LanguageModel
from inference.worker.loop import LoopEnd
from inference.worker.process import WorkerProcess, WorkerTimes
from signalbox.configuration import Configuration, configuration

_log = structlog.get_logger(__name__)


class Command(BaseCommand):
    """Loads a BLAS, then the model, then serves until it is told to stop."""

    help = (
        "Serve one model: claim its generations and run them, until SIGTERM or SIGINT. The first signal lets what "
        "runs finish for a while and gives the rest back to the queue; a second one ends the worker at once."
    )

    # They import the whole site, which a worker never needs: seconds of every restart.
    requires_system_checks = ()

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument(
            "model",
            nargs="?",
            help="The name of a prepared model (`manage.py model list`). Needed where more than one is offered.",
        )

    def handle(self, *args: Any, **options: Any) -> None:
        settings = configuration()
        model = model_to_serve(options["model"])
        _set_title(f"worker {model.name}")
        worker = WorkerProcess(
            load_engine(model),
            model,
            WorkerTimes(
                lease_s=settings.lease_seconds,
                sweep_s=settings.sweep_seconds,
                detach_grace_s=settings.detach_grace_seconds,
                drain_s=settings.drain_seconds,
            ),
            settings.pools_dir,
        )
        _drain_on_signals(worker)
        if worker.run() is LoopEnd.BACKEND_FAILED:
            raise CommandError(
                f"The backend of {model.name} failed too often in a row; its generations are back in the queue. "
                "The log above has the cause. Start the worker again."
            )


def model_to_serve(name: str | None) -> LanguageModel:
    """The model of that name; without one, the only model that is offered."""
    try:
        model = LanguageModel.objects.filter(name=name).first() if name else _only_model()
        others = _names(LanguageModel.objects.all())
    except db.Error as error:
        raise CommandError(
            f"The database cannot be read ({error}). Run `manage.py migrate` first."
        ) from error
    if model is None:
        known = f"Known models: {others}." if others else "No model was added yet."
        raise CommandError(f"There is no model named {name!r}. {known} {_add(name)}")
    if not (model.path / "signalbox.json").is_file():
        raise CommandError(
            f"The model {model.name!r} is not prepared: {model.path} holds no signalbox.json. {_add(model.name)}"
        )
    return model


def _only_model() -> LanguageModel:
    offered = list(LanguageModel.objects.filter(retired_at=None)[:2])
    if len(offered) == 1:
        return offered[0]
    if offered:
        names = _names(LanguageModel.objects.filter(retired_at=None))
        raise CommandError(f"Which model is this worker to serve? Name one: {names}.")
    raise CommandError(
        f"No model is offered that a worker could serve. {_add(configuration().default_model)}"
    )


def _names(models: QuerySet[LanguageModel]) -> str:
    return ", ".join(sorted(models.values_list("name", flat=True)))


def _add(name: str | None) -> str:
    """How to get a model, prepared for the first time or again. Set-up prepares the one that it brings."""
    brought = Configuration.model_fields["default_model"].default
    if name == brought == configuration().default_model:
        return "`make up` prepares it."
    return "Add it with `manage.py model add`."


def _drain_on_signals(worker: WorkerProcess) -> None:
    def drain(number: int, frame: FrameType | None) -> None:
        _log.info("worker_draining", signal=signal.Signals(number).name)
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, signal.SIG_DFL)
        worker.drain()

    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, drain)


def _set_title(title: str) -> None:
    """The name that ``ps`` and ``top`` show for this process, where the system lets it be set (Linux)."""
    name = Path("/proc/self/comm")
    if name.exists() and os.access(name, os.W_OK):
        name.write_text(title)
