"""What workers on this machine keep of answers to guess later ones by: shown, and forgotten for a tenant."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from django.db import transaction

from accounts import audit
from accounts.models import Tenant
from accounts.principal import Actor
from inference.engine.drafting import pool_files
from inference.engine.drafting.pool_files import PoolContent, PoolFileError
from inference.models import LanguageModel


@dataclass(frozen=True)
class PoolSummary:
    """One pool on disk. ``owner`` is a tenant's short name, or its id if there is no such tenant, or ``neutral``.

    ``problem``: why it cannot be used; its figures are 0 then.
    """

    model: str
    owner: str
    answers: int
    tokens: int
    size_bytes: int
    problem: str = ""


def neutral_pools(pools_dir: Path, models: Iterable[str]) -> list[PoolSummary]:
    """The neutral pools that were built on this machine."""
    paths = {model: pool_files.neutral_path(pools_dir, model) for model in models}
    return [_summary(model, "neutral", path) for model, path in paths.items() if path.exists()]


def tenant_pools(pools_dir: Path) -> list[PoolSummary]:
    """The pools of all tenants, by model."""
    slugs = {tenant.id.hex: tenant.slug for tenant in Tenant.objects.all()}
    return [
        _summary(file.model, slugs.get(file.namespace, file.namespace), file.path)
        for file in pool_files.tenant_files(pools_dir)
    ]


def forget(pools_dir: Path, *, tenant: Tenant, actor: Actor) -> list[str]:
    """Delete a tenant's pools on this machine; of which models there were any.

    Running workers drop what they have of it in memory within seconds. Whether they learn anew is the tenant's setting.
    """
    with transaction.atomic():
        # Recorded first: what cannot be recorded is not deleted.
        files = [file for file in pool_files.tenant_files(pools_dir) if file.namespace == tenant.id.hex]
        models = [file.model for file in files]
        audit.record(actor, "suffix_pool.forget", tenant, {"models": models}, {"models": []})
        pool_files.forget(pools_dir, tenant.id.hex)
    return models


def keep_neutral(path: Path, content: PoolContent, *, model: LanguageModel, actor: Actor) -> None:
    """Put a neutral pool that ``model`` has built in its place. Raises ``OSError``."""
    built = {"file": str(path), "answers": len(content.texts), "tokens": content.tokens}
    with transaction.atomic():
        audit.record(actor, "suffix_pool.build", model, None, built)
        pool_files.write(path, content)


def _summary(model: str, owner: str, path: Path) -> PoolSummary:
    try:
        content = pool_files.read(path)
        return PoolSummary(model, owner, len(content.texts), content.tokens, path.stat().st_size)
    except (PoolFileError, FileNotFoundError) as error:
        return PoolSummary(model, owner, 0, 0, 0, str(error))
