"""The steps of set-up, in order. Each does nothing when it is done already."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from scripts.set_up import browser, commands, environment, frontend, model
from scripts.set_up.commands import PYTHON, ROOT
from scripts.set_up.one_at_a_time import only_one
from scripts.set_up.problems import SetUpError

_ASK_CONFIGURATION = """
import json, sys
sys.path.insert(1, "platform")
from signalbox.configuration import configuration
settings = configuration()
print(json.dumps({"state_dir": str(settings.state_dir), "default_model": settings.default_model}))
"""
_ASK_WHETHER_IT_RUNS = """
import sys
sys.path.insert(1, "platform")
from signalbox.configuration import configuration
from signalbox.supervision.instance_lock import AlreadyRunningError, InstanceLock
try:
    InstanceLock(configuration().state_dir).refuse_a_second()
except AlreadyRunningError as error:
    print(error)
"""
_PREPARE_BLAS = """
import sys
sys.path.insert(1, "platform")
from inference.engine.blas import prepare_blas
from signalbox.configuration import configuration
settings = configuration()
choice = prepare_blas(settings.blas_dir, settings.blas)
if choice.warning:
    print(choice.warning)
"""


def run(arguments: list[str]) -> int:
    """Set up for ``run`` (the product) or ``test`` (its tests as well); the exit status."""
    parser = argparse.ArgumentParser(prog="set_up", description="Set Signalbox up in this checkout.")
    parser.add_argument("purpose", choices=["run", "test"])
    purpose = parser.parse_args(arguments).purpose
    try:
        with only_one(ROOT):
            if purpose == "run":
                _refuse_what_runs()
            _set_up(for_tests=purpose == "test")
    except SetUpError as error:
        print(f"\nSet-up stopped: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nSet-up interrupted; the next run goes on from here.", file=sys.stderr)
        return 130
    return 0


def _refuse_what_runs() -> None:
    """Raise ``SetUpError`` when the installation runs: nothing is exchanged under it, and nobody waits to hear so."""
    if not environment.complete():
        return
    if running := commands.run("Reading the configuration", [PYTHON, "-c", _ASK_WHETHER_IT_RUNS]).strip():
        raise SetUpError(running)


def _set_up(*, for_tests: bool) -> None:
    environment.install("runtime", *(["dev"] if for_tests else []))
    settings = json.loads(commands.run("Reading the configuration", [PYTHON, "-c", _ASK_CONFIGURATION]))
    state_dir = Path(settings["state_dir"])
    if not state_dir.exists():
        state_dir.mkdir(mode=0o700, parents=True)
    if warning := commands.run("Preparing the BLAS", [PYTHON, "-c", _PREPARE_BLAS]).strip():
        print(f"  {warning}")
    frontend.collect(state_dir)
    model.prepare(state_dir, settings["default_model"])
    if for_tests:
        browser.ensure()
