"""What goes wrong in the bookkeeping of prefixes costs a later prompt its hit, and no sequence a token."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

import mlx.core as mx
import pytest

from inference.engine.prefix_cache import PrefixCache
from tests.inference.engine.driving import Drive, alone, each_alone, prompts_of
from tests.inference.engine.test_engine_prefix import cached, drive_cached, run
from tests.inference.engine.test_prefix_cache import TOKEN_BYTES, UNBOUNDED, assert_true, length_of, store


@contextmanager
def no_memory_for(name: str) -> Iterator[None]:
    """One of MLX's functions finds no memory for its result."""

    def refuse(*arguments: Any, **options: Any) -> NoReturn:
        raise MemoryError(f"no memory for {name}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mx, name, refuse)
        yield


def told(caplog: pytest.LogCaptureFixture, what: str) -> list[str]:
    """What the log says of it, always with the reason."""
    records = [record for record in caplog.records if what in record.message]
    assert all(record.exc_info for record in records)
    return [record.message for record in records]


def begun(model_dir: Path) -> tuple[Drive, dict[str, list[int]]]:
    """Sequences of which some tokens each were run, and their prompts."""
    drive = drive_cached(model_dir)
    known = prompts_of(drive)
    prompts = {"short": list(range(20, 30)), "g2": known["g2"], "g4": known["g4"]}
    for chunk, (key, prompt) in enumerate(prompts.items(), start=2):
        drive.admit(key, prompt, namespace="tenant")
        drive.prefill(key, chunk=chunk)
    return drive, prompts


def test_a_row_that_cannot_be_kept_leaves_the_batch_all_the_same(
    any_tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    drive, prompts = begun(any_tiny_model)
    drive.prefill(*prompts)
    drive.decode(3)
    left = next(iter(prompts))
    with no_memory_for("contiguous"):
        drive.engine.drop(left)
    assert told(caplog, "is not kept") == [f"what was run of {left} is not kept for others"]
    prompt = prompts.pop(left)
    del drive.tokens[left]
    assert drive.decode_until(24) == each_alone(any_tiny_model, prompts)
    # What its prompt left there is as good as ever.
    assert cached(drive, [*prompt, 9]) == len(prompt)
    assert run(drive, "again", prompt, 12) == alone(any_tiny_model, prompt, count=12)


def test_prompts_that_cannot_be_kept_end_together_and_leave_nothing_wrong(
    any_tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    drive, prompts = begun(any_tiny_model)
    with no_memory_for("contiguous"):
        result = drive.prefill(*prompts)
    assert {key for key, _ in result.tokens} == set(prompts)
    assert len(told(caplog, "is not kept")) == len(prompts)
    assert drive.engine.prefix_cache_bytes == 0
    assert drive.decode_until(24) == each_alone(any_tiny_model, prompts)
    for key, prompt in prompts.items():
        drive.engine.drop(key)
        longer = [*prompt, *drive.tokens[key], 9]
        assert cached(drive, longer) == len(longer) - 1
        assert run(drive, "next", longer, 8) == alone(any_tiny_model, longer, count=8)


def test_a_prefix_that_cannot_be_looked_up_is_run(
    any_tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    drive = drive_cached(any_tiny_model)
    prompt = prompts_of(drive)["g2"]
    run(drive, "first", prompt, 12)
    longer = [*prompt, 9]
    assert cached(drive, longer) == len(prompt)
    with no_memory_for("concatenate"):
        drive.admit("second", longer, namespace="tenant")
    assert told(caplog, "looked up") == ["the prefixes of second could not be looked up, and are run"]
    assert drive.engine.cached_tokens("second") == 0
    drive.finish_prefill("second")
    assert drive.decode_until(12)["second"] == alone(any_tiny_model, longer, count=12)


def test_who_waits_is_looked_up_again_once_something_was_kept(
    tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    drive = drive_cached(tiny_model)
    engine = drive.engine
    prompt = prompts_of(drive)["g2"]
    drive.admit("waits", prompt, namespace="tenant")
    run(drive, "first", prompt, 3)
    with no_memory_for("concatenate"):
        engine.look_up_prefixes()
    for _ in range(3):
        engine.look_up_prefixes()
    assert len(told(caplog, "looked up")) == 1
    assert engine.remaining("waits") == len(prompt), "nothing was kept since"
    run(drive, "other", [5, 6, 7], 3)
    engine.look_up_prefixes()
    assert engine.remaining("waits") == 1


@pytest.mark.parametrize(("tokens", "known"), [([1, 2, 3, 4, 5], 3), ([1, 2, 4, 5], 2), ([4, 5], 0)])
def test_what_cannot_be_copied_is_not_kept_by_half(tokens: list[int], known: int) -> None:
    cache = PrefixCache(UNBOUNDED)
    store(cache, "one", [1, 2, 3])
    with no_memory_for("async_eval"), pytest.raises(MemoryError):
        store(cache, "one", tokens)
    assert cache.bytes == 3 * TOKEN_BYTES
    assert length_of(cache, "one", [*tokens, 9]) == known
    assert length_of(cache, "one", [1, 2, 3, 9]) == 3
    assert store(cache, "one", tokens)
    assert_true(cache.lookup("one", [*tokens, 9]), [*tokens, 9])
    assert length_of(cache, "one", [*tokens, 9]) == len(tokens)
