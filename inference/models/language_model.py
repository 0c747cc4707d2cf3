from __future__ import annotations

import uuid
from pathlib import Path

from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models

#: 16 TiB: more than any machine has.
MOST_MIB = 16 * 1024 * 1024
LONGEST_STALL_MS = 600_000
HIGHEST_ITL_TARGET = 100.0
MOST_DRAFT_TOKENS = 16
MOST_GRANT_ROUNDS = 256


class Speculation(models.TextChoices):
    """Whether a model's generations speculate. Values of ``inference.scheduling.speculation.SpeculationMode``."""

    MEASURED = "measured", "Measured: where it was measured to be faster"
    ON = "on", "On: without asking whether it pays"
    OFF = "off", "Off"


class DrafterKind(models.TextChoices):
    """What guesses the tokens that a speculating generation verifies."""

    NONE = "", "None"
    PROMPT_LOOKUP = "prompt_lookup", "Prompt lookup"
    SUFFIX_POOL = "suffix_pool", "Suffix pool"
    DRAFT_MODEL = "draft_model", "Draft model"


def validate_itl_target(target: float) -> None:
    """Streams beside prompts are slower than alone: a target must exceed 1. Refuses what is no number, too."""
    if not 1 < target <= HIGHEST_ITL_TARGET:
        raise ValidationError(
            "Between 1 and %(most)g, 1 itself left out: prompts cannot make streams faster.",
            code="itl_target",
            params={"most": HIGHEST_ITL_TARGET},
        )


class LanguageModel(models.Model):
    """A prepared model: what it is, where it lies, and how a worker schedules it. Retired, never deleted."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(
        max_length=200, unique=True, help_text="The id that clients send as `model`; may contain slashes."
    )
    directory = models.CharField(max_length=1000, help_text="The prepared model directory.")
    source = models.CharField(max_length=1000, blank=True, help_text="What it was prepared from.")
    architecture = models.CharField(max_length=60)
    context_length = models.PositiveIntegerField(help_text="Tokens of prompt and answer together, at most.")
    has_chat_template = models.BooleanField()
    quantization = models.CharField(
        max_length=30, blank=True, help_text="As in 4-bit, group 64; empty: none."
    )
    dtype = models.CharField(max_length=20)
    size_bytes = models.PositiveBigIntegerField()
    checksum = models.CharField(max_length=64, help_text="SHA-256 over the prepared files' checksums.")
    slots = models.PositiveSmallIntegerField(
        default=8,
        validators=[MinValueValidator(1), MaxValueValidator(256)],
        help_text="Generations that one worker runs at once. More: more is produced in all, each stream is slower, "
        "and each takes as much of the KV budget as the longest of them.",
    )
    kv_budget_mib = models.PositiveIntegerField(
        "KV budget",
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(MOST_MIB)],
        help_text="MiB for the keys and values of all that runs, the prefix cache included. More: more and longer "
        "generations run together. Too much: nothing is left for the weights and the system. Empty: the worker "
        "chooses, from its device's memory.",
    )
    kv_watermark_percent = models.PositiveSmallIntegerField(
        "KV watermark",
        default=5,
        validators=[MaxValueValidator(50)],
        help_text="Percent of the KV budget that admissions leave free while streams run, 0 to 50. Higher: running "
        "streams are disturbed less often. Lower: more is admitted.",
    )
    prefix_cache_mib = models.PositiveIntegerField(
        "prefix cache",
        null=True,
        blank=True,
        validators=[MaxValueValidator(MOST_MIB)],
        help_text="MiB of the KV budget that may keep finished prompts, so that the next turn of a chat does not run "
        "them again. More: more is found, and more memory is taken while nothing else needs it; it is given up first "
        "when room is short. Empty: a quarter of the budget. 0: off, every prompt is run in full.",
    )
    prefill_chunk_tokens = models.PositiveIntegerField(
        "chunk size",
        default=256,
        validators=[MinValueValidator(1), MaxValueValidator(4096)],
        help_text="Prompt tokens that one prefill tick runs. Larger: prompts are done sooner. Smaller: the longest gap "
        "that a stream sees is shorter, for streams wait while a chunk is run.",
    )
    longest_stall_ms = models.PositiveIntegerField(
        "longest stall",
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(LONGEST_STALL_MS)],
        help_text="Milliseconds. Set: the worker measures what prompt tokens cost and takes the largest chunk (16 to "
        "4096 tokens) that stalls streams no longer; the chunk size above is not used. Longer: prompts are done "
        "sooner. Shorter: streams run more evenly. Empty: the chunk size is used.",
    )
    prefill_interval = models.PositiveIntegerField(
        "interval",
        default=4,
        validators=[MaxValueValidator(4096)],
        help_text="Decode ticks that a full chunk leaves to running streams. Higher: smoother streams. Lower: earlier "
        "first tokens. 0: no prompt is run while anything streams.",
    )
    itl_target = models.FloatField(
        "slow-down target",
        null=True,
        blank=True,
        validators=[validate_itl_target],
        help_text="How many times slower streams may become while prompts are admitted (1.5: gaps half as long again). "
        "Set: the worker measures and takes the interval that keeps to it; the interval above is not used. Nearer to "
        "1: smoother streams. Higher: earlier first tokens. Empty: the interval is used.",
    )
    lane_floor = models.PositiveSmallIntegerField(
        default=4,
        validators=[MinValueValidator(1), MaxValueValidator(64)],
        help_text="After how many passes a lane in which something waits goes first, 1 to 64. Lower: low lanes wait "
        "less. Higher: high lanes are held up less often.",
    )
    preemption = models.BooleanField(
        default=True,
        help_text="A request that finds no room may displace work of lower lanes. On: it is served at once "
        "if that makes room enough. What is displaced keeps its tokens and goes on later, at the cost of running them "
        "once more. Off: nothing is run twice, and it waits until something ends.",
    )
    speculation = models.CharField(
        max_length=10,
        choices=Speculation,
        default=Speculation.MEASURED,
        help_text="Whether one stream at a time runs several guessed tokens in one step and keeps those that it would "
        "have produced anyway: its answer stays the same and comes sooner, at the cost of work for guesses that do "
        "not hold. Measured: the first generations are timed, and it is used where it pays.",
    )
    drafter = models.CharField(
        max_length=20,
        choices=DrafterKind,
        default=DrafterKind.SUFFIX_POOL,
        blank=True,
        help_text="What guesses. Prompt lookup: the prompt and the answer so far; costs next to nothing, and helps "
        "where an answer repeats them. Suffix pool: those first, then what the model is known to say; costs some "
        "memory. Draft model: a smaller model; it guesses best, and takes memory and time for each guess.",
    )
    draft_model = models.ForeignKey(
        "self",
        on_delete=models.PROTECT,
        null=True,
        blank=True,
        related_name="drafts_for",
        help_text="The model that guesses, if the drafter is a draft model: one with the same vocabulary, and much "
        "smaller, or nothing is gained. Larger: more guesses hold. Smaller: each takes less time, and less memory on "
        "every worker, which loads it beside its own.",
    )
    draft_tokens = models.PositiveSmallIntegerField(
        "draft length",
        default=4,
        validators=[MinValueValidator(1), MaxValueValidator(MOST_DRAFT_TOKENS)],
        help_text="Tokens guessed for one round at most, 1 to 16; the worker guesses fewer where few hold. Higher: "
        "more is gained where guesses hold. Lower: less is run in vain where they do not.",
    )
    grant_rounds = models.PositiveSmallIntegerField(
        "grant",
        default=8,
        validators=[MaxValueValidator(MOST_GRANT_ROUNDS)],
        help_text="Rounds for which one stream has the drafter before it is the next one's turn, 0 to 256. Higher: "
        "the drafter changes hands less often. Lower: streams that wait for it wait less. 0: it is kept until the "
        "answer ends, and nobody waits for it: the others decode plainly.",
    )
    speculate_undecided = models.BooleanField(
        default=True,
        help_text="What becomes of speculation that was measured to gain less than 1.15 times, too little to be sure "
        "of. On: it is used, and answers may come a little sooner. Off: it is not, and no guess is run in vain.",
    )
    default_max_tokens = models.PositiveIntegerField(
        default=1024,
        validators=[MinValueValidator(1)],
        help_text="Answer length of requests that name none; at most what the context leaves. Longer: fewer answers "
        "are cut off. Shorter: each request holds back less of its budget and of the KV memory, and more run together.",
    )
    kv_capacity_tokens = models.PositiveIntegerField(
        null=True,
        editable=False,
        help_text="Tokens of the longest sequence that a worker's KV memory can hold: the largest of the workers that "
        "take work.",
    )
    created_at = models.DateTimeField(auto_now_add=True)
    retired_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text="No longer offered since."
    )

    class Meta:
        ordering = ["name"]
        verbose_name = "model"
        constraints = [
            models.CheckConstraint(condition=models.Q(slots__gte=1), name="language_model_slots_positive"),
            models.CheckConstraint(
                condition=models.Q(prefill_chunk_tokens__gte=1), name="language_model_chunk_positive"
            ),
            models.CheckConstraint(
                condition=models.Q(default_max_tokens__gte=1), name="language_model_max_tokens_positive"
            ),
            models.CheckConstraint(
                condition=models.Q(longest_stall_ms__range=(1, LONGEST_STALL_MS)),
                name="language_model_stall_in_range",
            ),
            models.CheckConstraint(
                condition=models.Q(itl_target__gt=1, itl_target__lte=HIGHEST_ITL_TARGET),
                name="language_model_itl_target_in_range",
            ),
            models.CheckConstraint(
                condition=models.Q(kv_budget_mib__range=(1, MOST_MIB)),
                name="language_model_kv_budget_in_range",
            ),
            models.CheckConstraint(
                condition=models.Q(kv_watermark_percent__lte=50), name="language_model_kv_watermark_in_range"
            ),
            models.CheckConstraint(
                condition=models.Q(prefix_cache_mib__lte=MOST_MIB),
                name="language_model_prefix_cache_in_range",
            ),
            models.CheckConstraint(
                condition=models.Q(prefix_cache_mib__lte=models.F("kv_budget_mib")),
                name="language_model_prefix_cache_within_kv_budget",
            ),
            models.CheckConstraint(
                condition=models.Q(lane_floor__range=(1, 64)), name="language_model_lane_floor_in_range"
            ),
            models.CheckConstraint(
                condition=models.Q(speculation__in=Speculation.values),
                name="language_model_speculation_known",
            ),
            models.CheckConstraint(
                condition=models.Q(drafter__in=DrafterKind.values), name="language_model_drafter_known"
            ),
            models.CheckConstraint(
                condition=models.Q(drafter=DrafterKind.DRAFT_MODEL, draft_model__isnull=False)
                | models.Q(~models.Q(drafter=DrafterKind.DRAFT_MODEL), draft_model=None),
                name="language_model_draft_model_iff_drafter",
            ),
            models.CheckConstraint(
                condition=models.Q(draft_model=None) | ~models.Q(draft_model=models.F("id")),
                name="language_model_never_its_own_draft_model",
            ),
            models.CheckConstraint(
                condition=models.Q(draft_tokens__range=(1, MOST_DRAFT_TOKENS)),
                name="language_model_draft_tokens_in_range",
            ),
            models.CheckConstraint(
                condition=models.Q(grant_rounds__lte=MOST_GRANT_ROUNDS),
                name="language_model_grant_rounds_in_range",
            ),
        ]

    def __str__(self) -> str:
        return self.name

    def clean(self) -> None:
        """The prefix cache lies within the KV budget; a draft model is named where one drafts, and is another model."""
        errors = {}
        budget, cache = self.kv_budget_mib, self.prefix_cache_mib
        if budget is not None and cache is not None and cache > budget:
            errors["prefix_cache_mib"] = f"It lies within the KV budget, which is {budget} MiB: at most that."
        drafts = self.drafter == DrafterKind.DRAFT_MODEL
        if drafts and self.draft_model_id is None:
            errors["draft_model"] = "Choose the model that guesses, or another drafter."
        elif drafts and self.draft_model_id == self.id:
            errors["draft_model"] = "A model gains nothing by guessing for itself: choose a smaller one."
        elif not drafts and self.draft_model_id is not None:
            errors["draft_model"] = (
                "The drafter is not a draft model: choose that one, or name no model here."
            )
        if errors:
            raise ValidationError(errors)

    @property
    def starves_prompts(self) -> bool:
        """Whether no prompt is run as long as anything streams: the interval is 0 and follows no target."""
        return self.prefill_interval == 0 and self.itl_target is None

    @property
    def longest_sequence(self) -> int:
        """Tokens of prompt and answer together, at most: the context's, or what there is memory for."""
        if self.kv_capacity_tokens is None:
            return self.context_length
        return min(self.context_length, self.kv_capacity_tokens)

    @property
    def lacks_kv_memory(self) -> bool:
        """Whether its workers have memory for less than an answer of the default length: requests are refused."""
        needed = min(self.default_max_tokens, self.context_length)
        return (
            self.retired_at is None
            and self.kv_capacity_tokens is not None
            and self.kv_capacity_tokens < needed
        )

    @property
    def path(self) -> Path:
        return Path(self.directory)
