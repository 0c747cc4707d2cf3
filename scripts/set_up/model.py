"""The default model: a wheel by locked hash, prepared once in the state directory."""

from __future__ import annotations

from pathlib import Path

from scripts.set_up import commands, installers
from scripts.set_up.commands import PYTHON, ROOT
from scripts.set_up.console import Step
from scripts.set_up.problems import need_space

#: The name under which the wheel's model is served, unless the operator configured another.
NAME = "smollm2-135m-instruct"
_LOCK = ROOT / "requirements" / "default-model.lock"
_SPACE_MB = 1500


def prepare(state_dir: Path, default_model: str) -> None:
    """Make the default model ready to be served. An operator's own choice of model is theirs to add."""
    if default_model != NAME or (state_dir / "models" / NAME / "signalbox.json").exists():
        return
    need_space(state_dir, _SPACE_MB, "The default model")
    downloads = state_dir / "downloads"
    with Step(f"Downloading the default model {NAME} (93 MB)"):
        installers.download(_LOCK, downloads)
    wheel = next(downloads.glob("*.whl"))
    print(f"» Preparing {NAME} for this machine")
    commands.show("Preparing the model", [PYTHON, "manage.py", "migrate", "--verbosity", "0"])
    commands.show(
        "Preparing the model", [PYTHON, "manage.py", "model", "add", wheel, "--name", NAME, "--if-missing"]
    )
    wheel.unlink()
