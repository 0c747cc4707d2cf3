"""A prefix from the cache changes how soon a token comes, and never which."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import mlx.core as mx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from inference.engine.prefix_cache import PUBLISHED
from inference.messages import Sampling
from tests.inference.engine.driving import GREEDY, TEXTS, Drive, alone, each_alone, prompts_of
from tests.inference.engine.test_faults import POISON, PoisonAt, drive_poisonable

PLENTY = 1 << 30
SYSTEM = "A short prompt hardly costs anything; a long one is run chunk by chunk between the decode ticks. "
SAMPLED = Sampling(seed=9, temperature=0.9, top_p=0.9, presence_penalty=0.5, repetition_penalty=1.1)


def drive_cached(model_dir: Path, budget: int = PLENTY) -> Drive:
    return Drive(model_dir, budget)


def run(
    drive: Drive,
    key: str,
    prompt: Sequence[int],
    count: int,
    sampling: Sampling = GREEDY,
    namespace: str = "tenant",
    **options: object,
) -> list[int]:
    """Run one sequence to ``count`` tokens, and drop it."""
    drive.admit(key, prompt, sampling, namespace=namespace, **options)
    drive.finish_prefill(key)
    while len(drive.tokens[key]) < count:
        drive.decode()
    drive.engine.drop(key)
    return drive.tokens.pop(key)


def cached(drive: Drive, prompt: Sequence[int], namespace: str = "tenant", **options: object) -> int:
    """How much of a prompt is found, without running it."""
    drive.admit("probe", prompt, namespace=namespace, **options)
    found = drive.engine.cached_tokens("probe")
    drive.engine.drop("probe")
    del drive.tokens["probe"]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_conversation_hits_at_every_turn_and_reads_as_if_it_had_not(
    any_tiny_model: Path, sampling: Sampling
) -> None:
    drive = drive_cached(any_tiny_model)
    encode = drive.engine.tokenizer.encode
    prompt = encode(SYSTEM + TEXTS[0])
    run_before = 0
    for turn in range(4):
        assert cached(drive, prompt) == run_before
        answer = run(drive, "turn", prompt, 20, sampling)
        assert answer == alone(any_tiny_model, prompt, sampling, 20)
        # The last token was handed out while it was being run.
        run_before = len(prompt) + len(answer)
        prompt = [*prompt, *answer, *encode(f" And turn {turn}?")]


def test_hits_decode_beside_others_in_a_ragged_batch(any_tiny_model: Path) -> None:
    drive = drive_cached(any_tiny_model)
    prompts = prompts_of(drive)
    samplings = dict(zip(prompts, (GREEDY, SAMPLED, GREEDY, SAMPLED, Sampling(seed=3)), strict=True))
    for key in ("g2", "g4"):
        run(drive, key, prompts[key], 7, samplings[key])
    # Their own prefixes, a cold one, and what goes on where an earlier answer ended.
    prompts["g5"] = [*prompts["g2"], *alone(any_tiny_model, prompts["g2"], samplings["g2"], 7), 20, 21]
    samplings["g5"] = SAMPLED
    for key, prompt in prompts.items():
        drive.admit(key, prompt, samplings[key], namespace="tenant")
    assert drive.engine.cached_tokens("g5") == len(prompts["g5"]) - 2
    drive.prefill(*prompts, chunk=24)
    drive.finish_prefill(*prompts, chunk=5)
    assert drive.decode_until(24) == each_alone(any_tiny_model, prompts, samplings)


def test_a_prompt_that_is_wholly_known_still_runs_its_last_token(tiny_model: Path) -> None:
    drive = drive_cached(tiny_model)
    prompt = prompts_of(drive)["g2"]
    first = run(drive, "first", prompt, 8)
    assert cached(drive, prompt) == len(prompt) - 1
    drive.admit("again", prompt, namespace="tenant")
    assert drive.engine.remaining("again") == 1
    drive.finish_prefill("again")
    assert drive.decode_until(8)["again"] == first


def test_only_what_was_run_is_found(tiny_model: Path) -> None:
    drive = drive_cached(tiny_model)
    prompt = prompts_of(drive)["g2"]
    drive.admit("parked", prompt, namespace="tenant")
    assert cached(drive, [*prompt, 9]) == 0
    drive.prefill("parked", chunk=6)
    assert cached(drive, [*prompt, 9]) == 0
    drive.engine.drop("parked")
    assert cached(drive, [*prompt, 9]) == 6
    drive.admit("first", prompt, namespace="tenant")
    drive.finish_prefill("first")
    answer = drive.tokens["first"]
    assert cached(drive, [*prompt, *answer, 9]) == len(prompt)
    drive.engine.drop("first")
    # The first token of the answer was drawn, and nobody has run it.
    assert cached(drive, [*prompt, *answer, 9]) == len(prompt)
    answer = run(drive, "second", prompt, 5)
    assert cached(drive, [*prompt, *answer, 9], namespace="tenant") == len(prompt) + 5
    assert (
        cached(drive, [*prompt, *alone(tiny_model, prompt, count=6)], namespace="tenant") == len(prompt) + 5
    )


def test_tenants_never_share(any_tiny_model: Path) -> None:
    drive = drive_cached(any_tiny_model)
    prompt = drive.engine.tokenizer.encode(SYSTEM)
    text = run(drive, "a", prompt, 10, namespace="tenant a")
    held = drive.engine.prefix_cache_bytes
    assert cached(drive, [*prompt, 9], namespace="tenant b") == 0
    assert cached(drive, [*prompt, 9], namespace="tenant a") == len(prompt)
    assert run(drive, "b", prompt, 10, namespace="tenant b") == text
    assert drive.engine.prefix_cache_bytes == 2 * held
    drive.admit("nobody's", prompt)
    assert drive.engine.cached_tokens("nobody's") == 0


def test_a_sequence_without_namespace_leaves_nothing(tiny_model: Path) -> None:
    drive = drive_cached(tiny_model)
    drive.admit("nobody's", prompts_of(drive)["g2"])
    drive.finish_prefill("nobody's")
    drive.engine.drop("nobody's")
    assert drive.engine.prefix_cache_bytes == 0
    assert drive.engine.prefix_counters.lookups == 0


def test_what_is_published_is_found_by_all(any_tiny_model: Path) -> None:
    drive = drive_cached(any_tiny_model)
    encode = drive.engine.tokenizer.encode
    published = encode(SYSTEM)
    run(drive, "operator", published, 1, namespace=PUBLISHED)
    questions = {"tenant a": "apples?", "tenant b": "zebras!"}
    for tenant, question in questions.items():
        prompt = [*published, *encode(question)]
        assert cached(drive, prompt, namespace=tenant) == len(published)
        assert run(drive, tenant, prompt, 12, namespace=tenant) == alone(any_tiny_model, prompt, count=12)
    # What they added is their own.
    assert cached(drive, [*published, *encode("apples?"), 9], namespace="tenant b") == len(published)


def test_prompts_that_came_together_find_what_the_first_of_them_ran(any_tiny_model: Path) -> None:
    drive = drive_cached(any_tiny_model)
    shared = drive.engine.tokenizer.encode(SYSTEM)
    prompts = {f"c{choice}": shared for choice in range(3)}
    samplings = {key: Sampling(seed=choice) for choice, key in enumerate(prompts)}
    for key, prompt in prompts.items():
        drive.admit(key, prompt, samplings[key], namespace="tenant")
        assert drive.engine.cached_tokens(key) == 0
    chunks = 0
    for key in prompts:
        while drive.engine.remaining(key):
            drive.prefill(key, chunk=8)
            chunks += 1
    if not drive.engine.kv_fixed_bytes:
        assert chunks == -(-len(shared) // 8) + 2
    assert drive.decode_until(12) == each_alone(any_tiny_model, prompts, samplings, 12)


def test_waiting_prompts_are_looked_up_when_it_is_asked_for_and_not_when_they_are_run(
    tiny_model: Path,
) -> None:
    drive = drive_cached(tiny_model)
    engine = drive.engine
    prompt = prompts_of(drive)["g2"]
    for key in ("first", "second", "third"):
        drive.admit(key, prompt, namespace="tenant")
    drive.finish_prefill("first")
    engine.prefill(["second"], 5)
    assert engine.remaining("second") == len(prompt) - 5
    assert engine.remaining("third") == len(prompt)
    engine.look_up_prefixes()
    assert engine.remaining("second") == len(prompt) - 5
    assert engine.remaining("third") == 1
    assert engine.cached_tokens("third") == len(prompt) - 1
    drive.finish_prefill("second", "third")
    counters = engine.prefix_counters
    assert (counters.lookups, counters.hits, counters.hit_tokens) == (3, 1, len(prompt) - 1)
    expected = alone(tiny_model, prompt, count=12)
    assert drive.decode_until(12) == dict.fromkeys(("first", "second", "third"), expected)


def test_sequences_are_counted_when_they_begin(tiny_model: Path) -> None:
    drive = drive_cached(tiny_model)
    prompt = prompts_of(drive)["g2"]
    run(drive, "first", prompt, 3)
    cached(drive, prompt)
    run(drive, "second", prompt, 3)
    counters = drive.engine.prefix_counters
    assert (counters.lookups, counters.hits, counters.hit_tokens) == (2, 1, len(prompt) - 1)


def test_a_resumed_sequence_goes_on_from_what_it_had_run(any_tiny_model: Path) -> None:
    for sampling in (GREEDY, SAMPLED):
        drive = drive_cached(any_tiny_model)
        prompt = prompts_of(drive)["g2"]
        undisturbed = alone(any_tiny_model, prompt, sampling)
        for cut in (1, 2, 11):
            emitted = run(drive, "victim", prompt, cut, sampling)
            assert emitted == undisturbed[:cut]
            drive.admit("victim", prompt, sampling, emitted=emitted, namespace="tenant")
            # A window that has moved on can be taken up at its end only, and that is the token to be run.
            assert drive.engine.remaining("victim") <= (cut if drive.engine.kv_fixed_bytes else 1)
            # What it had produced itself is no cached prompt.
            assert drive.engine.cached_tokens("victim") <= len(prompt)
            drive.finish_prefill("victim")
            assert drive.decode_until(24 - cut)["victim"] == undisturbed[cut:]
            drive.engine.drop("victim")


def test_a_sequence_that_was_parked_goes_on_from_its_chunks(any_tiny_model: Path) -> None:
    drive = drive_cached(any_tiny_model)
    prompt = prompts_of(drive)["g2"]
    drive.admit("victim", prompt, namespace="tenant")
    drive.prefill("victim", chunk=20)
    drive.engine.drop("victim")
    assert cached(drive, prompt) == 20
    assert run(drive, "victim", prompt, 24) == alone(any_tiny_model, prompt)


def test_the_budget_holds_and_evicted_prefixes_are_run_again(tiny_model: Path) -> None:
    drive = drive_cached(tiny_model)
    prompt = prompts_of(drive)["g2"]
    text = run(drive, "first", prompt, 5)
    engine = drive.engine
    assert engine.prefix_cache_bytes == (len(prompt) + 5) * engine.kv_bytes_per_token
    assert engine.evict(1, spare={"tenant"}) > 0
    engine.set_prefix_budget(10 * engine.kv_bytes_per_token)
    assert engine.prefix_cache_bytes == 0
    assert run(drive, "again", prompt, 5) == text
    assert cached(drive, prompt) == 0
    engine.set_prefix_budget(0)
    assert run(drive, "off", prompt, 5) == text
    assert engine.prefix_counters.lookups == 2


def test_nothing_of_a_faulted_sequence_is_kept(tiny_model: Path) -> None:
    drive = drive_poisonable(tiny_model)
    drive.engine.set_prefix_budget(PLENTY)
    good = list(range(10, 22))
    drive.admit("bad", [*good, POISON, 30], namespace="tenant")
    for _ in range(2):
        drive.prefill("bad", chunk=12)
    assert drive.faults.keys() == {"bad"}
    drive.engine.drop("bad")
    assert drive.engine.prefix_cache_bytes == 0


def test_rows_that_were_run_apart_keep_what_they_ran_again(any_tiny_model: Path) -> None:
    drive = drive_poisonable(any_tiny_model)
    drive.engine.set_prefix_budget(PLENTY)
    prompts = {key: prompt for key, prompt in prompts_of(drive).items() if key != "g1"}
    for key, prompt in prompts.items():
        run(drive, key, prompt, 3)
        drive.admit(key, prompt, namespace="tenant")
    drive.admit("bad", [20, 21, 22], processors=[PoisonAt(3 + 3)], namespace="tenant")
    drive.prefill(*prompts, "bad")
    expected = each_alone(any_tiny_model, prompts)
    finished = drive.decode_until(24)
    assert {key: finished[key] for key in prompts} == expected
    assert drive.faults.keys() == {"bad"}
    produced = {key: list(drive.tokens[key]) for key in [*prompts, "bad"]}
    for key in (*prompts, "bad"):
        drive.engine.drop(key)
    assert cached(drive, [20, 21, 22, *produced["bad"], 9]) == 3
    for key, prompt in prompts.items():
        longer = [*prompt, *produced[key], 9]
        assert cached(drive, longer) == len(longer) - 1
        assert run(drive, "next", longer, 8) == alone(any_tiny_model, longer, count=8)


#: Tenants come, begin alike, are preempted and resumed, and leave, under a budget that holds a few of them.
actions = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.integers(0, 23)),
        st.tuples(st.just("prefill"), st.integers(1, 24)),
        st.tuples(st.just("prefill together"), st.integers(1, 24)),
        st.tuples(st.just("decode"), st.integers(1, 6)),
        st.tuples(st.just("preempt"), st.integers(0, 3)),
        st.tuples(st.just("drop"), st.integers(0, 3)),
        st.tuples(st.just("evict"), st.integers(1, 60)),
    ),
    min_size=8,
    max_size=40,
)


@pytest.fixture(scope="module")
def shared_prompts(any_tiny_model: Path) -> list[list[int]]:
    """Eight prompts, each with its own marker, of which most begin alike."""
    encode = Drive(any_tiny_model).engine.tokenizer.encode
    starts = ("", SYSTEM[:30], SYSTEM[:60], SYSTEM)
    return [encode(f"{start}{marker}") for start in starts for marker in ("apples 1", "zebras 22")]


@pytest.fixture(scope="module")
def reference(any_tiny_model: Path, shared_prompts: list[list[int]]) -> list[list[int]]:
    return [
        alone(any_tiny_model, prompt, SAMPLED if number % 2 else GREEDY, 120)
        for number, prompt in enumerate(shared_prompts)
    ]


@pytest.mark.slow
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(actions=actions)
def test_no_sequence_ever_gets_what_is_anothers(
    any_tiny_model: Path,
    shared_prompts: list[list[int]],
    reference: list[list[int]],
    actions: list[tuple[str, int]],
) -> None:
    drive = drive_cached(any_tiny_model)
    engine = drive.engine
    budget = 80 * engine.kv_bytes_per_token + 3 * engine.kv_fixed_bytes
    engine.set_prefix_budget(budget)
    numbers: dict[str, int] = {}
    resumed: dict[str, list[int]] = {}

    def admit(key: str, emitted: list[int]) -> None:
        number = numbers[key]
        resumed[key] = emitted
        drive.admit(
            key,
            shared_prompts[number],
            SAMPLED if number % 2 else GREEDY,
            emitted=emitted,
            namespace=f"tenant {number % 3}",
        )

    for turn, (action, argument) in enumerate(actions):
        parked = [key for key in engine.keys if engine.remaining(key)]
        if action == "admit":
            numbers[f"{turn}"] = argument % len(shared_prompts)
            admit(f"{turn}", [])
        elif action == "prefill" and parked:
            drive.prefill(parked[argument % len(parked)], chunk=argument)
        elif action == "prefill together" and parked:
            drive.prefill(*parked, chunk=argument)
        elif action == "decode":
            drive.decode(argument)
        elif action in ("drop", "preempt") and engine.keys:
            key = engine.keys[argument % len(engine.keys)]
            engine.drop(key)
            if action == "preempt":
                emitted = [*resumed[key], *drive.tokens[key]]
                assert emitted == reference[numbers[key]][: len(emitted)]
                admit(key, emitted)
        elif action == "evict":
            engine.evict(argument * engine.kv_bytes_per_token, spare={"tenant 1"})
        assert engine.prefix_cache_bytes <= budget
    for key, tokens in drive.tokens.items():
        got = [*resumed[key], *tokens]
        assert got == reference[numbers[key]][: len(got)]
    assert not drive.faults


@pytest.mark.slow
def test_the_growth_of_the_caches_is_what_they_take(any_tiny_model: Path) -> None:
    drive = drive_cached(any_tiny_model)
    engine = drive.engine
    assert engine.kv_step == 256
    # Keys and values of 2 heads of 16 numbers, 4 bytes each, in every layer; one of two has the window of 16.
    windowed = engine.kv_fixed_bytes > 0
    assert engine.kv_bytes_per_token == (1 if windowed else 2) * 2 * 2 * 16 * 4
    assert engine.kv_fixed_bytes == (16 * 2 * 2 * 16 * 4 if windowed else 0)
    drive.admit("g", range(10, 110))
    drive.finish_prefill("g")
    drive.decode(300)
    row = engine._decoding_rows._batch.prompt_cache
    taken = sum(cache.nbytes for cache in row)
    steps = -(-(100 + 300) // engine.kv_step)
    assert taken <= engine.kv_fixed_bytes + (steps + 1) * engine.kv_step * engine.kv_bytes_per_token


def test_storing_leaves_no_lazy_work_behind(tiny_model: Path) -> None:
    drive = drive_cached(tiny_model)
    mx.clear_cache()
    prompt = prompts_of(drive)["g2"]
    run(drive, "first", prompt, 5)
    drive.decode()
    mx.synchronize()
    before = mx.get_active_memory()
    held = drive.engine.prefix_cache_bytes
    assert drive.engine.evict(held) == held
    assert before - mx.get_active_memory() >= held
