"""What the tests of the four doors share: somebody who asks, something to ask for, and a worker's hand."""

from __future__ import annotations

from uuid import UUID

import redis

from accounts.models import Lane, Tenant
from accounts.principal import Principal
from accounts.tenancy import every_tenant
from inference.dispatch import publishing
from inference.dispatch.claims import Claim, claim
from inference.intake import Accepted, Submission, accept
from inference.messages import Delta, End, EndState, FinishReason, Sampling, Usage
from inference.models import Generation, LanguageModel
from inference.settlement import start
from tests.factories import ApiKeyFactory, EntitlementFactory, TenantFactory

WORKER = "worker-of-the-test"
LEASE_S = 60.0


def principal_of(tenant: Tenant) -> Principal:
    """A key of ``tenant`` that may generate."""
    key = ApiKeyFactory(tenant=tenant)
    return Principal(
        tenant_id=tenant.id,
        tenant_name=tenant.name,
        scopes=frozenset({"inference", "read"}),
        name=key.name,
        api_key_id=key.id,
        api_key_prefix=key.prefix,
        key_allowance_id=key.allowance_id,
    )


def entitled_principal(lane: str = "normal") -> Principal:
    """A key of a new tenant that is entitled to one lane."""
    tenant = TenantFactory()
    EntitlementFactory(tenant=tenant, lane=Lane.objects.get(name=lane))
    return principal_of(tenant)


def submission(model: LanguageModel, **changes: object) -> Submission:
    fields: dict[str, object] = {
        "model": model,
        "prompt": [5, 6, 7],
        "max_tokens": 10,
        "sampling": Sampling(seed=1, temperature=0.0),
        "route": "chat.completions",
    }
    return Submission(**{**fields, **changes})  # type: ignore[arg-type]


def accepted(model: LanguageModel, by: Principal | None = None, **changes: object) -> Accepted:
    """Accept one generation; ``by`` a new tenant in the normal lane, if nobody is given."""
    return accept(by or entitled_principal(), submission(model, **changes))


def claimed(client: redis.Redis, model: LanguageModel) -> Claim:
    """Claim the next generation as a worker does: in Valkey, then in the database."""
    got = claim(client, WORKER, model.name, LEASE_S).claim
    assert got is not None
    assert start(_uuid(got.task.generation), got.epoch)
    return got


def publish_tokens(client: redis.Redis, got: Claim, *texts: str) -> None:
    """Publish one delta of one token for each text."""
    deltas = [
        (got.task.generation, got.epoch, Delta(seq=seq, epoch=got.epoch, tokens=[seq], text=text))
        for seq, text in enumerate(texts, 1)
    ]
    assert publishing.publish(client, WORKER, deltas).refused == set()


def end_of(got: Claim, seq: int, *, completion_tokens: int = 0) -> End:
    return End(
        seq=seq,
        epoch=got.epoch,
        state=EndState.COMPLETED,
        finish_reason=FinishReason.STOP,
        usage=Usage(prompt_tokens=len(got.task.prompt), completion_tokens=completion_tokens),
    )


def row(generation: str) -> Generation:
    """The generation as the database has it now."""
    with every_tenant("the test looks at what it made"):
        found: Generation = Generation.objects.get(id=_uuid(generation))
    return found


def _uuid(generation: str) -> UUID:
    return UUID(hex=generation)
