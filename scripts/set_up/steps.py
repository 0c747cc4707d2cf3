"""The steps of set-up, in order. Each does nothing when it is done already."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from scripts.set_up import browser, commands, environment, frontend, model
from scripts.set_up.commands import PYTHON, ROOT
from scripts.set_up.one_at_a_time import only_one
from scripts.set_up.problems import SetUpError, refused

#: Asked of the installation itself, in one process: most of what it takes is starting. The words behind it say what is
#: to be done: `unless-running` refuses, before anything else, under an installation that runs; `prepare` makes the
#: state directory and the BLAS ready.
_ASK = """
import json, sys
sys.path.insert(1, "platform")
from scripts.set_up.problems import SetUpError, need_space
from signalbox.configuration import configuration
from signalbox.supervision.instance_lock import AlreadyRunningError, InstanceLock
settings = configuration()
answer = {"state_dir": str(settings.state_dir), "default_model": settings.default_model}
try:
    if "unless-running" in sys.argv:
        InstanceLock(settings.state_dir).refuse_a_second()
    if "prepare" in sys.argv:
        from inference.engine.blas import prepare_blas
        if not (settings.state_dir / "static.stamp").exists():
            need_space(settings.state_dir, 150, "The state directory")
        settings.state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        answer["warning"] = prepare_blas(settings.blas_dir, settings.blas).warning
except (AlreadyRunningError, SetUpError) as error:
    answer["refusal"] = str(error)
print(json.dumps(answer))
"""


def run(arguments: list[str]) -> int:
    """Set up for ``run`` (the product) or ``test`` (its tests as well); the exit status."""
    parser = argparse.ArgumentParser(prog="set_up", description="Set Signalbox up in this checkout.")
    parser.add_argument("purpose", choices=["run", "test"])
    purpose = parser.parse_args(arguments).purpose
    try:
        with only_one(ROOT):
            _set_up(for_tests=purpose == "test")
    except SetUpError as error:
        print(f"\nSet-up stopped: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"\nSet-up stopped: {refused(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nSet-up interrupted; the next run goes on from here.", file=sys.stderr)
        return 130
    return 0


def _set_up(*, for_tests: bool) -> None:
    # Tests have installations of their own. Otherwise nothing is exchanged under one that runs, and nobody waits to
    # hear so.
    careful = [] if for_tests else ["unless-running"]
    locks = ("runtime", *(["dev"] if for_tests else []))
    if not environment.holds(*locks):
        if environment.complete():
            _ask("Reading the configuration", *careful)
        environment.install(*locks)
    settings = _ask("Reading the configuration and preparing the BLAS", *careful, "prepare")
    if settings["warning"]:
        print(f"  {settings['warning']}")
    state_dir = Path(settings["state_dir"])
    frontend.collect(state_dir)
    model.prepare(state_dir, settings["default_model"])
    if for_tests:
        browser.ensure()


def _ask(what: str, *words: str) -> dict[str, str]:
    """What ``_ASK`` answers. Raises ``SetUpError`` when the installation runs and was not to, or has no room."""
    answer: dict[str, str] = json.loads(commands.run(what, [PYTHON, "-c", _ASK, *words]))
    if "refusal" in answer:
        raise SetUpError(answer["refusal"])
    return answer
