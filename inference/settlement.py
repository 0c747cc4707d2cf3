"""The one way to start running, and the one way to end.

Both are conditional updates guarded by state and epoch, so that each may be repeated, by anybody, in any order: a
generation is settled exactly once, by the owner with the newest epoch.
"""

from __future__ import annotations

import zlib
from datetime import UTC, datetime
from uuid import UUID

import msgspec
from django.db import transaction
from django.utils import timezone

from accounts import ledger
from accounts.tenancy import every_tenant
from inference import conversations, runs
from inference.dispatch import token_log
from inference.messages import Delta, End, LogEntry
from inference.models import Generation, GenerationOutput
from inference.models.generation import LIVE_STATES, GenerationState
from inference.runs import RunRecord
from signalbox import store

_output_encoder = msgspec.msgpack.Encoder()
_output_decoder: msgspec.msgpack.Decoder[list[LogEntry]] = msgspec.msgpack.Decoder(list[LogEntry])


def start(generation_id: UUID, epoch: int) -> bool:
    """Record that the claim of ``epoch`` runs the generation. False: it is a ghost (ended, or claimed since)."""
    with every_tenant("a worker runs every tenant's generations"):
        return bool(
            Generation.objects.filter(id=generation_id, state__in=LIVE_STATES, epoch__lt=epoch).update(
                state=GenerationState.RUNNING, epoch=epoch, claimed_at=timezone.now()
            )
        )


def settle(
    generation_id: UUID,
    epoch: int,
    end: End,
    *,
    first_token_at: float | None = None,
    run: RunRecord | None = None,
) -> bool:
    """Bring the generation to its terminal state: outcome, exact usage, ledger entry, kept output, in one transaction.

    ``first_token_at`` is in Unix seconds; None: as the log tells. ``run``, the claim that came to this end, is written
    in the same transaction. False: it was settled already, or a newer epoch owns it; the run is written nevertheless,
    for it was.
    """
    with every_tenant("settlement is by generation"):
        entries = _kept_entries(generation_id)
        began_at = _first_token_at(generation_id, first_token_at)
        with transaction.atomic():
            now = timezone.now()
            # Generation and ledger entry name their counts as the usage does.
            counts = msgspec.structs.asdict(end.usage)
            settled = Generation.objects.filter(
                id=generation_id, state__in=LIVE_STATES, epoch__lte=epoch
            ).update(
                state=end.state.value,
                epoch=epoch,
                finish_reason=end.finish_reason or "",
                cancel_reason=end.cancel_reason or "",
                failure_code=end.failure.code if end.failure else "",
                failure_message=end.failure.message if end.failure else "",
                first_token_at=began_at,
                ended_at=now,
                **counts,
            )
            if run is not None and (settled or Generation.objects.filter(id=generation_id).exists()):
                runs.write(run)
            if not settled:
                return False
            generation = Generation.objects.select_related("model").get(id=generation_id)
            ledger.settle(
                generation_id=generation_id,
                tenant_id=generation.tenant_id,
                api_key_id=generation.api_key_id,
                user_id=generation.user_id,
                model=generation.model.name,
                lane=generation.lane_id,
                at=now,
                **counts,
            )
            if entries is not None:
                GenerationOutput.objects.create(generation=generation, events=_pack(entries))
                conversations.finish(generation, "".join(e.text for e in entries if isinstance(e, Delta)))
    return True


def settle_from_log(generation_id: UUID) -> bool:
    """Settle a generation whose token log has its end already. False: it has none, or was settled before."""
    entries = token_log.read(store.shared_client(), generation_id.hex)
    if not entries or not isinstance(entries[-1], End):
        return False
    return settle(generation_id, entries[-1].epoch, entries[-1])


def kept_output(generation_id: UUID) -> list[LogEntry] | None:
    """The stored events of an ended generation, or None where its output was not kept (or has been retired).

    Sees the generations of the active tenancy scope.
    """
    output = GenerationOutput.objects.filter(generation_id=generation_id).first()
    return _output_decoder.decode(zlib.decompress(output.events)) if output else None


def _first_token_at(generation_id: UUID, told: float | None) -> datetime | None:
    """As the owner says that had it, or else the token log. Read before the transaction, like the entries."""
    if told is None:
        told = token_log.first_token_at(store.shared_client(), generation_id.hex)
    return None if told is None else datetime.fromtimestamp(told, UTC)


def _pack(entries: list[LogEntry]) -> bytes:
    return zlib.compress(_output_encoder.encode(entries))


def _kept_entries(generation_id: UUID) -> list[LogEntry] | None:
    """The token log, where it is to be kept. Read before the transaction: none waits for Valkey."""
    kept = Generation.objects.filter(id=generation_id, state__in=LIVE_STATES, keep_output=True).exists()
    return token_log.read(store.shared_client(), generation_id.hex) if kept else None
