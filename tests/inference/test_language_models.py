"""A prepared model is offered and withdrawn through one door, with its audit record."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from accounts.models import AuditEvent
from accounts.principal import Actor
from inference.engine.preparation.record import FileRecord, PreparedModel, read_prepared
from inference.language_models import UnknownLanguageModel, register, retire
from inference.models import LanguageModel, SpeculationVerdict
from tests.factories import SpeculationVerdictFactory
from tests.inference.engine.tiny_model import make_tiny_model

pytestmark = pytest.mark.django_db

ACTOR = Actor.system("test")


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> PreparedModel:
    return read_prepared(make_tiny_model(tmp_path_factory.mktemp("models") / "offered"))


def actions() -> list[str]:
    return list(AuditEvent.objects.order_by("sequence").values_list("action", flat=True))


def test_registering_offers_what_the_record_says(prepared: PreparedModel) -> None:
    register(prepared, actor=ACTOR)
    model = LanguageModel.objects.get(name="offered")
    assert model.path == prepared.directory
    assert (model.architecture, model.context_length, model.has_chat_template) == ("llama", 512, True)
    assert (model.size_bytes, model.checksum) == (prepared.record.size_bytes, prepared.record.checksum)
    event = AuditEvent.objects.get()
    assert (event.action, event.object_id, event.before) == ("language_model.register", str(model.pk), None)


@pytest.mark.parametrize(("on_gpu", "terms"), [(False, (64, 2)), (True, (512, 16))])
def test_a_new_models_first_terms_are_its_devices(
    prepared: PreparedModel, on_gpu: bool, terms: tuple[int, int]
) -> None:
    model = register(prepared, actor=ACTOR, on_gpu=on_gpu)
    assert (model.prefill_chunk_tokens, model.prefill_interval) == terms


def test_registering_again_changes_and_records_nothing(prepared: PreparedModel) -> None:
    first = register(prepared, actor=ACTOR)
    assert register(prepared, actor=ACTOR) == first
    assert actions() == ["language_model.register"]


def test_a_model_prepared_anew_keeps_its_schedule(prepared: PreparedModel) -> None:
    register(prepared, actor=ACTOR)
    LanguageModel.objects.update(slots=3, prefill_chunk_tokens=64)
    longer = msgspec.structs.replace(prepared.record, context_length=4096)
    model = register(replace(prepared, record=longer), actor=ACTOR)
    assert (model.context_length, model.slots, model.prefill_chunk_tokens) == (4096, 3, 64)
    event = AuditEvent.objects.latest("sequence")
    assert event.before is not None
    assert event.after is not None
    assert (event.before["context_length"], event.after["context_length"]) == (512, 4096)


def test_other_weights_under_a_name_are_measured_anew(prepared: PreparedModel) -> None:
    model = register(prepared, actor=ACTOR)
    SpeculationVerdictFactory(language_model=model)
    SpeculationVerdictFactory(drafter="draft_model:offered")
    kept = SpeculationVerdictFactory(drafter="draft_model:offered-too")
    register(prepared, actor=ACTOR)
    assert SpeculationVerdict.objects.count() == 3
    [name, *_] = prepared.record.files
    files = {**prepared.record.files, name: FileRecord(size_bytes=1, sha256="f" * 64)}
    register(replace(prepared, record=msgspec.structs.replace(prepared.record, files=files)), actor=ACTOR)
    assert SpeculationVerdict.objects.get() == kept


def test_a_retired_model_stays_a_row_and_can_come_back(prepared: PreparedModel) -> None:
    register(prepared, actor=ACTOR)
    assert retire("offered", actor=ACTOR).retired_at is not None
    retire("offered", actor=ACTOR)
    assert register(prepared, actor=ACTOR).retired_at is None
    assert LanguageModel.objects.count() == 1
    assert actions() == ["language_model.register", "language_model.retire", "language_model.register"]


def test_what_is_not_there_cannot_be_retired() -> None:
    with pytest.raises(UnknownLanguageModel):
        retire("nothing", actor=ACTOR)


def test_registering_reads_no_weights(prepared: PreparedModel, tmp_path: Path) -> None:
    """The directory may lie where the web process cannot look."""
    assert register(replace(prepared, directory=tmp_path / "elsewhere"), actor=ACTOR).pk
