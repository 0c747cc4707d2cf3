"""Which system prompts all tenants share in a model's prefix cache: the one place that writes their rows.

What is published is no secret: whoever sends it can tell by the time that it was sent before. So an operator decides,
for each text, and nothing is ever shared because two tenants happened to say the same.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

from django.db import transaction
from django.utils import timezone

from accounts import audit
from accounts.principal import Actor
from accounts.refusals import ChangeRefusal, ChangeRefused, checked_content, checked_text
from inference.models import LanguageModel, PublishedPrefix
from inference.tokenization import tokenizer
from inference.tokenization.system_prefix import system_prefix
from inference.tokenization.template import TemplateError
from inference.tokenization.tokenizer import TokenizerError

_MOST_NAME_CHARACTERS: Final = 80
#: Workers render each of them anew from time to time.
_MOST_TEXT_CHARACTERS: Final = 100_000


def publish(*, model: LanguageModel, name: str, text: str, actor: Actor) -> PublishedPrefix:
    """Share the system prompt ``text`` between all tenants of ``model``; workers follow within seconds.

    ``text`` is kept to the letter, but for line ends, which forms send as CRLF. The audit records its length and
    SHA-256. Raises ``ChangeRefused`` for a name that is taken, and for a text that the model's chat template does not
    put at the beginning of a chat, or that leaves no room for one.
    """
    text = text.replace("\r\n", "\n")
    checked_content(text, field="text", most=_MOST_TEXT_CHARACTERS)
    name = checked_text(name, field="name", most=_MOST_NAME_CHARACTERS)
    _check_tokens(model, text)
    with transaction.atomic():
        model = LanguageModel.objects.select_for_update().get(id=model.id)
        if model.retired_at:
            raise ChangeRefused(
                ChangeRefusal.INVALID, f"{model} is retired: nobody could use it.", field="language_model"
            )
        if PublishedPrefix.objects.filter(language_model=model, name=name, withdrawn_at=None).exists():
            raise ChangeRefused(
                ChangeRefusal.NAME_TAKEN,
                f"{name} is published for {model} already. Withdraw it first, or choose another name.",
                field="name",
            )
        prefix = PublishedPrefix.objects.create(language_model=model, name=name, text=text)
        audit.record(actor, "published_prefix.publish", prefix, None, _recorded(prefix))
    return prefix


def withdraw(*, prefix: PublishedPrefix, actor: Actor) -> PublishedPrefix:
    """Share it no longer; workers forget it within seconds. Withdrawing a withdrawn one changes nothing."""
    with transaction.atomic():
        prefix = PublishedPrefix.objects.select_for_update().get(id=prefix.id)
        if prefix.withdrawn_at is None:
            before = _recorded(prefix)
            prefix.withdrawn_at = timezone.now()
            prefix.save(update_fields=["withdrawn_at"])
            audit.record(actor, "published_prefix.withdraw", prefix, before, _recorded(prefix))
    return prefix


def live_texts(model: LanguageModel) -> list[str]:
    """The system prompts that are published for ``model`` now, each once, the oldest first."""
    live = PublishedPrefix.objects.filter(language_model=model, withdrawn_at=None).order_by(
        "published_at", "id"
    )
    return list(dict.fromkeys(live.values_list("text", flat=True)))


def _check_tokens(model: LanguageModel, text: str) -> None:
    try:
        tokens = system_prefix(tokenizer.load(model.path), text)
    except TemplateError as error:
        raise ChangeRefused(
            ChangeRefusal.INVALID, f"This cannot be published for {model}: {error}", field="text"
        ) from error
    except TokenizerError as error:
        raise ChangeRefused(
            ChangeRefusal.INVALID, f"{model} cannot be read: {error}", field="language_model"
        ) from error
    if len(tokens) >= model.longest_sequence:
        raise ChangeRefused(
            ChangeRefusal.INVALID,
            f"It takes {len(tokens)} tokens, and {model} has room for {model.longest_sequence} with the answer.",
            field="text",
        )


def _recorded(prefix: PublishedPrefix) -> dict[str, Any]:
    """For the audit, which holds no prompts: by what the text can be told from others."""
    return {
        **audit.fields_of(prefix, "name", "language_model_id", "withdrawn_at"),
        "characters": len(prefix.text),
        "sha256": hashlib.sha256(prefix.text.encode()).hexdigest(),
    }
