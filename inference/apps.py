from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from django.apps import AppConfig

from accounts import model_names, personal_data
from accounts.signals import sessions_ended


class InferenceConfig(AppConfig):
    """How a request becomes a generation, and a generation tokens."""

    name = "inference"
    verbose_name = "Inference"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        # Not before the models are there.
        from accounts.audit import accepted_generations

        sessions_ended.connect(_recheck_sockets)
        model_names.asked_of(_offered_models)
        personal_data.erased_by(_erase_user)
        accepted_generations.asked_of(_unassigned_since)


def _recheck_sockets(*, user_id: UUID, **_: Any) -> None:
    # Imported late: workers and Celery load this app as well, and serve no API.
    from inference.api.socket_credentials import recheck_sockets

    recheck_sockets(user_id)


def _offered_models() -> Iterable[str]:
    # Imported late: the models are loaded after the applications.
    from inference.models import LanguageModel

    return LanguageModel.objects.filter(retired_at=None).values_list("name", flat=True)


def _erase_user(user_id: UUID) -> Mapping[str, int]:
    # Imported late: the models are loaded after the applications.
    from inference.erasure import erase_user

    return erase_user(user_id)


def _unassigned_since(at: datetime | None) -> Iterable[UUID]:
    # Imported late: the models are loaded after the applications.
    from inference.unassigned_generations import unassigned_since

    return unassigned_since(at)
