"""From the operator's publishing to what tenants find in a worker's cache, and back."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import redis
import time_machine

from accounts.principal import Actor, Principal
from inference.engine.engine import Engine
from inference.models import LanguageModel, PublishedPrefix
from inference.published_prefixes import publish, withdraw
from inference.tokenization import tokenizer
from inference.tokenization.template import render_chat
from inference.worker.published_watch import PublishedWatch
from inference.worker.requests import Publish
from tests.factories import LanguageModelFactory
from tests.inference.doors import entitled_principal
from tests.inference.engine.tiny_model import CHAT_TEMPLATE, make_tiny_model
from tests.inference.worker.conftest import (
    GREEDY,
    SETTINGS,
    HandDrivenWorker,
    WorkerInThread,
    alone,
    end_of,
    submit,
    tokens_of,
    wait_until,
)

ACTOR = Actor.system("test")
SYSTEM = "You are the signal box. Say who was given priority, when, and why."


@pytest.fixture
def caching(model: LanguageModel, engine: Engine, valkey: redis.Redis) -> HandDrivenWorker:
    worker = HandDrivenWorker(
        engine, valkey, model.name, settings=replace(SETTINGS, prefix_cache_bytes=1 << 24)
    )
    worker.turn()
    return worker


@pytest.fixture
def watch(model: LanguageModel, caching: HandDrivenWorker) -> PublishedWatch:
    """What the housekeeping thread runs, on the test's."""
    return PublishedWatch(
        model, caching.engine.tokenizer, lambda prefixes: caching.loop.ask(Publish(prefixes))
    )


def chat(engine: Engine, question: str) -> list[int]:
    messages = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
    return render_chat(engine.tokenizer, messages)


def cached(worker: HandDrivenWorker, model: LanguageModel, question: str, by: Principal | None = None) -> int:
    """Ask it to the end, and check the answer; how many of its tokens were found."""
    prompt = chat(worker.engine, question)
    generation = submit(model, by=by, prompt=prompt, max_tokens=6)
    worker.claim()
    worker.run_dry()
    log = worker.log(generation)
    assert tokens_of(log) == alone(worker.engine, prompt, GREEDY, 6)
    usage = end_of(log).usage
    assert usage.prompt_tokens == len(prompt)
    return usage.cached_tokens


def test_a10_tenants_share_what_was_published_until_it_is_withdrawn_and_nothing_else(
    model: LanguageModel, caching: HandDrivenWorker, watch: PublishedWatch
) -> None:
    watch()
    assert cached(caching, model, "Apples?") == 0
    assert cached(caching, model, "Apples?") == 0, "nothing is shared that nobody published"
    prefix = publish(model=model, name="box", text=SYSTEM, actor=ACTOR)
    watch()
    assert cached(caching, model, "Apples?") == 0, "somebody has to run it first"
    shared = cached(caching, model, "Zebras!")
    question = chat(caching.engine, "Apples?")
    assert shared == len(
        render_chat(caching.engine.tokenizer, [{"role": "system", "content": SYSTEM}], False)
    )
    assert cached(caching, model, "Apples?") == shared < len(question) - 1
    tenant = entitled_principal()
    assert cached(caching, model, "Pears.", by=tenant) == shared
    assert cached(caching, model, "Pears.", by=tenant) > shared
    withdraw(prefix=prefix, actor=ACTOR)
    watch()
    assert cached(caching, model, "Apples?") == 0
    caching.engine.publish([])
    caching.engine.set_prefix_budget(0)


def test_only_what_changes_is_asked_of_the_tick_thread(model: LanguageModel, engine: Engine) -> None:
    asked: list[tuple[tuple[int, ...], ...]] = []
    watch = PublishedWatch(model, engine.tokenizer, asked.append)
    for _ in range(2):
        watch()
    publish(model=model, name="box", text=SYSTEM, actor=ACTOR)
    for _ in range(2):
        watch()
    publish(model=LanguageModelFactory(directory=model.directory), name="x", text="Other.", actor=ACTOR)
    watch()
    [before, after] = asked
    assert before == ()
    [tokens] = after
    assert engine.tokenizer.decode(tokens).endswith(f"{SYSTEM}\n")


def with_template(directory: Path, template: str) -> Path:
    file = directory / "tokenizer_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": template}))
    return directory


def test_a_template_that_tells_the_date_gets_new_tokens_each_day(tmp_path: Path, db: None) -> None:
    dated = "{{ 'Today is ' + strftime_now('%d %m %Y') + '.' }}" + CHAT_TEMPLATE
    directory = with_template(make_tiny_model(tmp_path / "dated"), dated)
    model = LanguageModelFactory(directory=str(directory))
    asked: list[tuple[tuple[int, ...], ...]] = []
    loaded = tokenizer.load(directory)
    watch = PublishedWatch(model, loaded, asked.append)
    publish(model=model, name="box", text=SYSTEM, actor=ACTOR)
    for day in ("2026-03-01", "2026-03-01", "2026-03-02"):
        with time_machine.travel(f"{day}T12:00:00+00:00"):
            watch()
    assert [loaded.decode(tokens)[9:19] for [tokens] in asked] == ["01 03 2026", "02 03 2026"]


def test_a_text_that_the_template_no_longer_takes_is_left_out_and_the_others_are_not(
    tmp_path: Path, db: None
) -> None:
    picky = (
        "{% if 'lane' in messages[0].content %}{{ raise_exception('no lanes') }}{% endif %}" + CHAT_TEMPLATE
    )
    directory = with_template(make_tiny_model(tmp_path / "picky"), picky)
    model = LanguageModelFactory(directory=str(directory))
    for text in ("Set the lanes.", "Answer."):
        PublishedPrefix.objects.create(language_model=model, name=text, text=text)
    asked: list[tuple[tuple[int, ...], ...]] = []
    loaded = tokenizer.load(directory)
    PublishedWatch(model, loaded, asked.append)()
    [[tokens]] = asked
    assert "Answer." in loaded.decode(tokens)


def test_a_running_worker_follows(model: LanguageModel, start_worker: Callable[..., WorkerInThread]) -> None:
    publish(model=model, name="box", text=SYSTEM, actor=ACTOR)
    worker = start_worker()
    published = worker.process._engine._prefixes
    wait_until(lambda: len(published._published) == 1)
