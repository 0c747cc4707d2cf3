"""What an operator published is found by every tenant, and nothing else of anybody."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.engine.prefix_cache import PUBLISHED, PrefixCache
from inference.messages import Sampling
from tests.inference.engine.driving import GREEDY, Drive, alone
from tests.inference.engine.test_engine_prefix import PLENTY, SAMPLED, SYSTEM, cached, drive_cached, run
from tests.inference.engine.test_prefix_cache import UNBOUNDED, assert_true, length_of, store
from tests.inference.engine.tiny_model import make_tiny_model

APPLES, ZEBRAS = "apples? ", "zebras! "


def published_drive(model_dir: Path, *texts: str) -> tuple[Drive, list[list[int]]]:
    """An engine that shares these texts, and their tokens."""
    drive = drive_cached(model_dir)
    prefixes = [drive.engine.tokenizer.encode(text) for text in texts]
    drive.engine.publish(prefixes)
    return drive, prefixes


def asking(drive: Drive, prefix: Sequence[int], question: str) -> list[int]:
    return [*prefix, *drive.engine.tokenizer.encode(question)]


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_published_prefix_is_run_by_one_tenant_and_found_by_the_others(
    tiny_model: Path, sampling: Sampling
) -> None:
    drive, [prefix] = published_drive(tiny_model, SYSTEM)
    first = asking(drive, prefix, APPLES)
    assert cached(drive, first, namespace="a") == 0
    assert run(drive, "first", first, 12, sampling, namespace="a") == alone(tiny_model, first, sampling, 12)
    second = asking(drive, prefix, ZEBRAS)
    assert cached(drive, second, namespace="b") == len(prefix)
    assert run(drive, "second", second, 12, sampling, namespace="b") == alone(
        tiny_model, second, sampling, 12
    )


def test_nothing_that_follows_it_is_ever_found_by_another_tenant(tiny_model: Path) -> None:
    drive, [prefix] = published_drive(tiny_model, SYSTEM)
    prompt = asking(drive, prefix, APPLES)
    answer = run(drive, "a", prompt, 12, namespace="a")
    whole = [*prompt, *answer, 9]
    assert cached(drive, whole, namespace="a") == len(whole) - 1
    assert cached(drive, whole, namespace="b") == len(prefix)
    assert cached(drive, prompt, namespace="b") == len(prefix)


def test_what_only_begins_like_it_stays_its_tenants_own(tiny_model: Path) -> None:
    drive, [prefix] = published_drive(tiny_model, SYSTEM)
    run(drive, "shorter", prefix[:-1], 0, namespace="a")
    run(drive, "other", [*prefix[:-1], 9, 9, 9], 4, namespace="a")
    assert cached(drive, [*prefix, 9], namespace="b") == 0
    drive.admit("nobody's", asking(drive, prefix, APPLES))
    drive.finish_prefill("nobody's")
    drive.engine.drop("nobody's")
    assert cached(drive, [*prefix, 9], namespace="b") == 0


def test_it_is_kept_of_a_ragged_batch_and_of_a_prompt_that_was_cut_off(tiny_model: Path) -> None:
    drive, [prefix] = published_drive(tiny_model, SYSTEM)
    prompts = {
        "long": [*range(30, 160)],
        "published": asking(drive, prefix, APPLES),
        "short": [*range(20, 29)],
    }
    for key, prompt in prompts.items():
        drive.admit(key, prompt, namespace=key)
    drive.prefill(*prompts)
    question = asking(drive, prefix, ZEBRAS)
    assert cached(drive, question, namespace="b") == len(prefix)
    assert run(drive, "b", question, 12, namespace="b") == alone(tiny_model, question, count=12)

    drive, [prefix] = published_drive(tiny_model, SYSTEM)
    drive.admit("cut off", asking(drive, prefix, APPLES * 4), namespace="a")
    drive.prefill("cut off", chunk=len(prefix) + 2)
    drive.engine.drop("cut off")
    assert cached(drive, question, namespace="b") == len(prefix)
    assert run(drive, "b", question, 12, namespace="b") == alone(tiny_model, question, count=12)


def test_a_tenant_that_has_it_already_publishes_it_with_its_next_prompt(tiny_model: Path) -> None:
    drive = drive_cached(tiny_model)
    prefix = drive.engine.tokenizer.encode(SYSTEM)
    run(drive, "before", asking(drive, prefix, APPLES), 3, namespace="a")
    drive.engine.publish([prefix])
    assert cached(drive, [*prefix, 9], namespace="b") == 0
    run(drive, "after", asking(drive, prefix, ZEBRAS), 3, namespace="a")
    question = asking(drive, prefix, "who?")
    assert cached(drive, question, namespace="b") == len(prefix)
    assert run(drive, "b", question, 12, namespace="b") == alone(tiny_model, question, count=12)


def test_a_withdrawn_prefix_is_found_no_more_and_whoever_began_with_it_goes_on(tiny_model: Path) -> None:
    drive, [longer, other] = published_drive(tiny_model, SYSTEM, "1 2 3 4 5 6")
    shorter = longer[:20]
    for prefix in (longer, other):
        run(drive, "a", asking(drive, prefix, APPLES), 3, namespace="a")
    running = asking(drive, longer, ZEBRAS)
    drive.admit("running", running, namespace="b")
    assert drive.engine.cached_tokens("running") == len(longer)
    drive.engine.publish([shorter, other])
    assert cached(drive, [*longer, 9], namespace="c") == len(shorter)
    assert cached(drive, [*other, 9], namespace="c") == len(other)
    drive.finish_prefill("running")
    while len(drive.tokens["running"]) < 12:
        drive.decode()
    assert drive.tokens["running"][:12] == alone(tiny_model, running, count=12)
    drive.engine.drop("running")
    assert cached(drive, [*longer, 9], namespace="d") == len(shorter)
    drive.engine.publish([])
    run(drive, "again", asking(drive, longer, "who?"), 3, namespace="a")
    assert cached(drive, [*longer, 9], namespace="e") == 0
    assert cached(drive, [*other, 9], namespace="e") == 0
    # What a tenant has begun with is its own as ever.
    assert cached(drive, [*longer, 9], namespace="a") == len(longer)
    assert cached(drive, [*longer, 9], namespace="b") == len(longer)


def test_caches_that_cannot_be_cut_publish_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    drive, [prefix] = published_drive(make_tiny_model(tmp_path / "windowed", sliding_window=16), SYSTEM)
    assert "cannot be cut" in caplog.text
    run(drive, "a", asking(drive, prefix, APPLES), 3, namespace="a")
    assert cached(drive, [*prefix, 9], namespace="b") == 0


def test_evicted_it_is_run_and_kept_again(tiny_model: Path) -> None:
    drive, [prefix] = published_drive(tiny_model, SYSTEM)
    run(drive, "a", asking(drive, prefix, APPLES), 3, namespace="a")
    drive.engine.evict(drive.engine.prefix_cache_bytes)
    assert cached(drive, [*prefix, 9], namespace="b") == 0
    drive.engine.set_prefix_budget(0)
    run(drive, "off", asking(drive, prefix, APPLES), 3, namespace="a")
    drive.engine.set_prefix_budget(PLENTY)
    assert cached(drive, [*prefix, 9], namespace="b") == 0
    run(drive, "on", asking(drive, prefix, APPLES), 3, namespace="a")
    assert cached(drive, [*prefix, 9], namespace="b") == len(prefix)


token_lists = st.lists(
    st.lists(st.integers(0, 2), min_size=1, max_size=8).map(tuple), min_size=1, max_size=8, unique=True
)


@pytest.mark.slow
@given(stored=token_lists, retained=token_lists, prompts=token_lists)
def test_after_retaining_only_what_is_retained_is_found_and_bytes_add_up(
    stored: list[tuple[int, ...]], retained: list[tuple[int, ...]], prompts: list[tuple[int, ...]]
) -> None:
    cache, fresh = PrefixCache(UNBOUNDED), PrefixCache(UNBOUNDED)
    for tokens in stored:
        store(cache, PUBLISHED, tokens)
        store(cache, "tenant", tokens)
        if kept := max(common(tokens, other) for other in retained):
            store(fresh, PUBLISHED, tokens[:kept])
    private = cache.bytes // 2
    cache.retain(PUBLISHED, retained)
    assert cache.bytes == private + fresh.bytes
    assert cache.counters.evictions == 0
    for prompt in [*prompts, *((*tokens, 9) for tokens in (*stored, *retained))]:
        assert length_of(cache, "other", prompt) == length_of(fresh, "other", prompt)
        assert_true(cache.lookup("other", prompt), prompt)
    # One by one: nothing goes before what hangs on it.
    while cache.bytes:
        assert cache.evict(1)
        for prompt in prompts:
            assert_true(cache.lookup("tenant", prompt), prompt)


def common(left: Sequence[int], right: Sequence[int]) -> int:
    count = 0
    while count < min(len(left), len(right)) and left[count] == right[count]:
        count += 1
    return count
