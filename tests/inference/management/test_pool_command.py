"""``manage.py pool``: a neutral pool that a model made, and a tenant's that is forgotten."""

from __future__ import annotations

import io
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from accounts.models import AuditEvent
from inference.engine.drafting import pool_files
from inference.engine.drafting.neutral_pool import find_neutral, neutral_prompts
from inference.engine.drafting.pool_store import PoolOwner, PoolStore
from inference.engine.drafting.suffix_pool import unpack
from inference.engine.preparation import read_prepared
from inference.tokenization import tokenizer, vocabulary
from inference.tokenization.template import render_chat
from signalbox.configuration import configuration
from tests.factories import LanguageModelFactory, TenantFactory
from tests.inference.engine.driving import alone
from tests.inference.engine.tiny_model import make_tiny_model

pytestmark = pytest.mark.django_db
PROMPTS = ["Where is the signal box?", "List three lanes.", "x"]


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("\n".join(PROMPTS))
    return path


@pytest.fixture(autouse=True)
def _no_pools(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    # MLX is there before the command: it cannot be given another BLAS any more.
    stock = configuration().model_copy(update={"blas": "stock"})
    monkeypatch.setattr("inference.management.serving.configuration", lambda: stock)
    monkeypatch.setattr("inference.engine.blas._loaded", None)
    yield
    shutil.rmtree(configuration().pools_dir, ignore_errors=True)


def pool(*arguments: object) -> str:
    out = io.StringIO()
    call_command("pool", *map(str, arguments), stdout=out, stderr=io.StringIO())
    return out.getvalue()


def owner_of(model_dir: Path) -> PoolOwner:
    record = read_prepared(model_dir).record
    return PoolOwner("tiny", record.checksum, vocabulary.checksum(tokenizer.load(model_dir)))


def test_a_built_pool_holds_what_the_model_answers(tiny_model: Path, prompts: Path) -> None:
    LanguageModelFactory(name="tiny", directory=str(tiny_model))
    out = pool("build", "tiny", "--prompts", prompts, "--answer-tokens", 12, "--rows", 2)
    assert "3 answers, 36 tokens" in out
    content = pool_files.read(pool_files.neutral_path(configuration().pools_dir, "tiny"))
    model = tokenizer.load(tiny_model)
    expected = [
        alone(tiny_model, render_chat(model, [{"role": "user", "content": prompt}]), count=12)
        for prompt in PROMPTS
    ]
    assert [unpack(text).tolist() for text in content.texts] == expected
    assert content.model_checksum == read_prepared(tiny_model).record.checksum
    neutral = find_neutral(configuration().pools_dir, owner_of(tiny_model))
    assert neutral is not None
    assert neutral.texts == content.texts
    assert pool("list").split() == ["tiny", "neutral", *out.split(": ")[1].rstrip(".\n").split()]


def test_a_pool_of_other_tokens_is_not_used(tiny_model: Path, prompts: Path) -> None:
    LanguageModelFactory(name="tiny", directory=str(tiny_model))
    pool("build", "tiny", "--prompts", prompts, "--answer-tokens", 4)
    assert find_neutral(configuration().pools_dir, PoolOwner("tiny", "0" * 64, "other tokens")) is None


def test_a_forgotten_tenant_is_audited_and_no_other_is_touched() -> None:
    pools_dir = configuration().pools_dir
    acme, other = TenantFactory(slug="acme"), TenantFactory(slug="other")
    store = PoolStore(pools_dir, PoolOwner("owner/tiny", "0" * 64, "vocabulary"))
    for tenant in (acme, other):
        store.learn(tenant.id.hex, [1, 2, 3])
    store.synchronise()
    assert [line.split()[:4] for line in pool("list").splitlines()] == [
        ["owner/tiny", slug, "1", "answers,"]
        for slug in sorted(["acme", "other"], key={"acme": acme.id.hex, "other": other.id.hex}.__getitem__)
    ]
    assert pool("forget", "acme") == "Forgot what was learned from acme, for owner/tiny.\n"
    assert [file.namespace for file in pool_files.tenant_files(pools_dir)] == [other.id.hex]
    event = AuditEvent.objects.latest("sequence")
    assert (event.action, event.object_kind, event.tenant_id) == ("suffix_pool.forget", "tenant", acme.id)
    assert (event.before, event.after) == ({"models": ["owner/tiny"]}, {"models": []})
    assert pool("forget", "acme").startswith("Nothing that was learned from acme")


def test_mistakes_are_told_in_one_line(prompts: Path) -> None:
    with pytest.raises(CommandError, match="no model named 'nobody'"):
        pool("build", "nobody")
    with pytest.raises(CommandError, match="no tenant 'nobody'"):
        pool("forget", "nobody")
    with pytest.raises(CommandError, match="at least 1"):
        pool("build", "nobody", "--rows", 0)
    assert pool("list").startswith("Nothing was built or learned")


def test_the_prompts_of_the_product_are_many_and_all_different() -> None:
    prompts = neutral_prompts()
    assert len(prompts) == len(set(prompts)) >= 150
