"""Who is in the engine, and how far."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import structlog

from inference.scheduling.prefill import ParkedPrompt
from inference.worker.sequences import RunningSequence

if TYPE_CHECKING:
    from inference.engine.engine import Engine

_log = structlog.get_logger(__name__)

#: Of so many, those that left last, it is known what they found in the prefix cache: more than leave while a lost one
#: is away.
_REMEMBERED: Final = 1000


class Roster:
    """The admitted sequences: parked while their prompt is run, then decoding. Keeps the engine in step.

    Those that hold the speculative slot or wait for it are neither, from their prompt's last chunk on.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._parked: dict[str, RunningSequence] = {}
        self._decoding: dict[str, RunningSequence] = {}
        self._at_slot: dict[str, RunningSequence] = {}
        #: What those that have left found in the prefix cache, the latest last. What they left there goes with it.
        self._found: dict[str, int] = {}

    def __iter__(self) -> Iterator[RunningSequence]:
        return iter([*self._parked.values(), *self._at_slot.values(), *self._decoding.values()])

    def __len__(self) -> int:
        return len(self._parked) + len(self._at_slot) + len(self._decoding)

    @property
    def parked(self) -> list[RunningSequence]:
        """Those whose prompt is not finished, in admission order."""
        return list(self._parked.values())

    @property
    def decoding(self) -> list[RunningSequence]:
        return list(self._decoding.values())

    @property
    def decoding_rows(self) -> int:
        return len(self._decoding)

    @property
    def prefills(self) -> int:
        return len(self._parked)

    def find(self, key: str) -> RunningSequence | None:
        return self._decoding.get(key) or self._parked.get(key) or self._at_slot.get(key)

    def __getitem__(self, key: str) -> RunningSequence:
        sequence = self.find(key)
        if sequence is None:
            raise KeyError(key)
        return sequence

    def is_parked(self, sequence: RunningSequence) -> bool:
        """Whether its prompt is not finished, also at the slot."""
        if sequence.key in self._at_slot:
            return self._engine.remaining(sequence.key) > 0
        return sequence.key in self._parked

    def is_at_slot(self, sequence: RunningSequence) -> bool:
        """Whether it holds the speculative slot, or waits for it."""
        return sequence.key in self._at_slot

    def admit(self, sequence: RunningSequence) -> None:
        """Put it into the engine; what was produced already is run like prompt."""
        task = sequence.task
        found = self._found.pop(sequence.key, None)
        if sequence.cached_tokens is None:  # a lost run cannot tell the next one, unless that is here too
            sequence.cached_tokens = found
        self._engine.admit(
            sequence.key,
            task.prompt,
            task.sampling,
            tuple(sequence.emitted),
            namespace=task.tenant,
            draft_pool=task.tenant if task.suffix_pool else None,
            teaches=task.suffix_pool,
        )
        self._parked[sequence.key] = sequence

    def look_up_prefixes(self) -> None:
        """See what waiting prompts need not run, now that others have been run: their ``remaining`` is what will be."""
        self._engine.look_up_prefixes()

    def parked_prompts(self, drafts: bool) -> list[ParkedPrompt]:
        """What ``plan_prompts`` chooses from, in the order of ``parked``. ``drafts``: the slot is offered to them."""
        return [
            ParkedPrompt(
                sequence.order,
                sequence.task.lane_rank,
                self._engine.remaining(key),
                begun=sequence.begun,
                last_chunk_apart=drafts and not sequence.slot_offered,
            )
            for key, sequence in self._parked.items()
        ]

    def progress(self, sequence: RunningSequence) -> tuple[int, int]:
        """Tokens of the prompt (and of what was produced before) that were run, and all of them."""
        total = len(sequence.task.prompt) + sequence.resumed_from
        return total - (self._engine.remaining(sequence.key) if self.is_parked(sequence) else 0), total

    def prompt_tokens_run(self, sequence: RunningSequence) -> int:
        """How many of the prompt's own tokens this generation has cost."""
        prompt = len(sequence.task.prompt)
        if sequence.emitted:
            return prompt
        if sequence.cached_tokens is None:  # what is done of it by now, others did
            return 0
        return min(prompt, self.progress(sequence)[0])

    def begin(self, sequence: RunningSequence) -> int:
        """It was run for the first time, if it is: how much of it was found in the prefix cache. Else 0."""
        if sequence.begun:
            return 0
        sequence.begun = True
        cached = self._engine.cached_tokens(sequence.key)
        if sequence.cached_tokens is None:
            sequence.cached_tokens = cached  # later claims find what the generation itself has left there
        return cached

    def to_slot(self, sequence: RunningSequence) -> None:
        """It holds the speculative slot from now on, or waits for it."""
        self._at_slot[sequence.key] = self._parked.pop(sequence.key)

    def to_classic(self, sequence: RunningSequence) -> None:
        """It has done with the speculative slot: it decodes with the others, once its prompt is finished."""
        if self.is_parked(sequence):
            self._parked[sequence.key] = self._at_slot.pop(sequence.key)
            # As early as it was admitted: it goes before those that came while it waited.
            self._parked = dict(sorted(self._parked.items(), key=lambda item: item[1].order))
            return
        self._engine.into_classic(sequence.key)
        self._decoding[sequence.key] = self._at_slot.pop(sequence.key)

    def produced(self, key: str) -> RunningSequence:
        """It has a token: it decodes from now on, if it is not at the slot."""
        if key in self._parked:
            self._decoding[key] = self._parked.pop(key)
        return self[key]

    def leave(self, sequence: RunningSequence) -> None:
        """Take it out of the engine. It is gone, even if the engine fails at that."""
        self._parked.pop(sequence.key, None)
        self._decoding.pop(sequence.key, None)
        self._at_slot.pop(sequence.key, None)
        self._remember(sequence)
        try:
            self._engine.drop(sequence.key)
        except Exception:  # noqa: BLE001 (the row is gone either way)
            _log.exception("engine_drop_failed", generation=sequence.key)

    def _remember(self, sequence: RunningSequence) -> None:
        if sequence.cached_tokens is None:
            return
        self._found[sequence.key] = sequence.cached_tokens
        if len(self._found) > _REMEMBERED:
            del self._found[next(iter(self._found))]
