"""The prepared files of models on this machine, as an operator deletes them."""

from __future__ import annotations

from pathlib import Path

from django.db import transaction

from accounts import audit
from accounts.principal import Actor
from inference.engine.preparation import model_directory, remove_prepared
from inference.models import LanguageModel


def remove(models_dir: Path, name: str, *, actor: Actor) -> bool:
    """Delete the prepared files of the model ``name``; False: there were none. A worker that has it loaded runs on.

    Recorded before it begins: gigabytes are not deleted while the chain's head is held. Raises ``PreparationError``.
    """
    directory = model_directory(models_dir, name)
    if not directory.exists():
        return False
    model = LanguageModel.objects.filter(name=name).first()
    with transaction.atomic():
        audit.record(
            actor,
            "language_model.delete_files",
            model or audit.ObjectRef("language_model", "", name),
            {"directory": str(directory)},
            None,
        )
    return remove_prepared(models_dir, name)
