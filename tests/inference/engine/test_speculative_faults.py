"""What a drafter does wrong costs guesses; what a sequence does wrong costs that sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import mlx.core as mx
import pytest

from inference.engine.drafting.drafter import DraftContext, DrafterFault
from inference.engine.results import RoundResult
from tests.inference.engine.driving import GREEDY, Drive, alone, each_alone, prompts_of
from tests.inference.engine.speculating import PENALISED, ScriptedDrafter, SpeculativeDrive, knowing
from tests.inference.engine.test_faults import (
    POISON,
    FailAt,
    PoisonAt,
    PoisonedEmbedding,
    ProcessorFaultError,
)


class Broken(ScriptedDrafter):
    """Fails in one of its methods."""

    def __init__(self, method: str) -> None:
        super().__init__(lambda context, k: [5] * k)
        self.method = method

    def fail_in(self, method: str) -> None:
        if method == self.method:
            raise OSError(f"no {method} today")

    def bind(self, context: DraftContext) -> None:
        self.fail_in("bind")
        super().bind(context)

    def draft(self, k: int) -> list[int]:
        self.fail_in("draft")
        return super().draft(k)

    def observe(self, committed: Sequence[int], proposed: int, accepted: int) -> None:
        self.fail_in("observe")

    def finish(self, context: DraftContext) -> None:
        self.fail_in("finish")

    def release(self) -> None:
        self.fail_in("release")


class Workshop:
    """Makes drafters: first those that it was given, and then good ones."""

    def __init__(self, *first: ScriptedDrafter | Exception) -> None:
        self.first = list(first)
        self.made: list[ScriptedDrafter] = []

    def __call__(self) -> ScriptedDrafter:
        drafter = self.first.pop(0) if self.first else ScriptedDrafter(lambda context, k: [6] * k)
        if isinstance(drafter, Exception):
            raise drafter
        self.made.append(drafter)
        return drafter


def start(model_dir: Path, workshop: Callable[[], ScriptedDrafter]) -> tuple[SpeculativeDrive, list[int]]:
    """A sequence with its first token, and what plain decoding makes of it."""
    drive = SpeculativeDrive(model_dir, drafter=False)
    prompt = prompts_of(drive)["g0"]
    drive.engine.set_drafter(workshop)
    drive.start("g", prompt, PENALISED)
    return drive, alone(model_dir, prompt, PENALISED)


@pytest.mark.parametrize("method", ["bind", "draft", "observe", "release", "finish"])
def test_a_drafter_that_fails_is_made_again_and_costs_no_token(tiny_model: Path, method: str) -> None:
    workshop = Workshop(Broken(method))
    drive, expected = start(tiny_model, workshop)
    result = None
    if drive.engine.take_drafter("g"):
        result = drive.engine.speculate("g", 2)
        drive.tokens["g"] += result.tokens
        drive.engine.learn_from("g", 2)
    drive.engine.return_drafter("g")
    assert len(workshop.made) == 2
    assert drive.engine.drafter.reloads == 1
    assert (result is None) == (method == "bind")
    if result is not None:
        assert result.fault is None
        assert (result.proposed == 0) == (method == "draft")
        assert isinstance(result.drafter_fault, DrafterFault) == (method in ("draft", "observe"))
        if result.drafter_fault is not None:
            assert f"no {method} today" in str(result.drafter_fault)
            assert isinstance(result.drafter_fault.__cause__, OSError)
    assert drive.rounds("g") == expected
    assert workshop.made[1].told
    assert drive.engine.drafter.reloads == 1
    assert drive.engine.drafter.fault is None


@pytest.mark.parametrize("guesses", [[-1], [10**6], ["x"], None, 3], ids=repr)
def test_guesses_that_are_no_tokens_never_reach_the_model(tiny_model: Path, guesses: object) -> None:
    workshop = Workshop(ScriptedDrafter(lambda context, k: guesses))  # type: ignore[arg-type, return-value]
    drive, expected = start(tiny_model, workshop)
    assert drive.engine.take_drafter("g")
    result = drive.engine.speculate("g", 4)
    assert (result.proposed, len(result.tokens), result.fault) == (0, 1, None)
    assert isinstance(result.drafter_fault, DrafterFault)
    drive.tokens["g"] += result.tokens
    # The sequence still has the drafter: the one that was made in its place.
    assert drive.engine.drafter.holder == "g"
    assert drive.engine.speculate("g", 2).proposed == 2
    assert drive.engine.drafter.fault is None
    assert len(workshop.made) == 2
    assert expected[: len(drive.tokens["g"])] == drive.tokens["g"]


def test_too_many_guesses_are_cut(tiny_model: Path) -> None:
    drive, expected = start(tiny_model, lambda: ScriptedDrafter(lambda context, k: [6] * (k + 5)))
    assert drive.round("g", 3).proposed == 3
    assert drive.rounds("g") == expected


def test_a_drafter_that_fails_again_and_again_is_given_up(
    tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    made: list[Broken] = []

    def workshop() -> Broken:
        made.append(Broken("draft"))
        return made[-1]

    drive, expected = start(tiny_model, workshop)
    assert drive.engine.take_drafter("g")
    for _ in range(5):
        result = drive.engine.speculate("g", 4)
        drive.tokens["g"] += result.tokens
        assert isinstance(result.drafter_fault, DrafterFault)
        assert result.fault is None
    assert drive.tokens["g"] == expected[:6]
    assert len(made) == 3
    assert drive.engine.drafter.holder is None
    assert not drive.engine.drafter.available
    drive.engine.return_drafter("g")
    assert not drive.engine.take_drafter("g")
    assert "no draft today" in str(drive.engine.drafter.fault)
    assert "no drafter until one is configured" in caplog.text
    drive.engine.set_drafter(ScriptedDrafter)
    assert drive.engine.drafter.fault is None
    assert drive.engine.take_drafter("g")


def test_a_good_round_forgives_the_faults_before_it(tiny_model: Path) -> None:
    made: list[Broken] = []

    def workshop() -> Broken:
        made.append(Broken("draft"))
        return made[-1]

    drive, _ = start(tiny_model, workshop)
    assert drive.engine.take_drafter("g")
    for _ in range(4):
        drive.engine.speculate("g", 1)
        made[-1].method = ""
        assert drive.engine.speculate("g", 1).drafter_fault is None
        made[-1].method = "draft"
    assert len(made) == 5


def test_a_drafter_that_cannot_be_made_is_asked_for_again(tiny_model: Path) -> None:
    workshop = Workshop(OSError("no disk"), OSError("still no disk"))
    drive, expected = start(tiny_model, workshop)
    assert "no disk" in str(drive.engine.drafter.fault)
    assert drive.engine.drafter.available
    assert not drive.engine.take_drafter("g")
    assert drive.engine.drafter.memory_bytes == 0
    assert drive.engine.take_drafter("g")
    assert (drive.engine.drafter.name, drive.engine.drafter.memory_bytes) == ("scripted", 1000)
    drive.engine.return_drafter("g")
    assert drive.rounds("g") == expected


def test_another_drafter_takes_over_from_the_one_that_a_sequence_has(tiny_model: Path) -> None:
    old, new = ScriptedDrafter(), ScriptedDrafter()
    drive, _ = start(tiny_model, lambda: old)
    assert drive.engine.take_drafter("g")
    drive.engine.set_drafter(lambda: new)
    assert old.told[-1] == ("release", None)
    drive.engine.speculate("g", 2)
    assert [what for what, _ in new.told] == ["bind", "observe"]
    drive.engine.set_drafter(None)
    assert drive.engine.speculate("g", 2).proposed == 0
    drive.engine.return_drafter("g")
    assert not drive.engine.take_drafter("g")


def drive_poisonable(model_dir: Path) -> SpeculativeDrive:
    drive = SpeculativeDrive(model_dir)
    drive.engine.model.model.embed_tokens = PoisonedEmbedding(drive.engine.model.model.embed_tokens)
    return drive


def test_a_guess_that_the_model_fails_of_costs_no_token(
    any_tiny_model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    drive = drive_poisonable(any_tiny_model)
    prompt = prompts_of(drive)["g0"][:4]
    expected = alone(any_tiny_model, prompt, PENALISED, 12)
    drive.start("g", prompt, PENALISED)
    drive.drafter.script = knowing([*prompt, *expected])
    assert not drive.round("g", 2).rerun
    drive.drafter.script = lambda context, k: [expected[4], POISON][:k]
    result = drive.round("g", 2)
    assert result.rerun
    assert (result.tokens, result.proposed, result.accepted) == ([expected[4]], 2, 1)
    assert result.fault is result.drafter_fault is None
    assert "is run again without guesses" in caplog.text
    drive.drafter.script = knowing([*prompt, *expected], lambda position: position % 2 == 0)
    assert drive.rounds("g", 12) == expected


def test_a_sequence_that_the_model_fails_of_ends_alone(any_tiny_model: Path) -> None:
    drive = drive_poisonable(any_tiny_model)
    prompts = prompts_of(drive)
    drive.admit("decodes", prompts["g2"])
    drive.finish_prefill("decodes")
    drive.start("speculates", prompts["g0"])
    drive.start("bad", [20, 21, 22], processors=[PoisonAt(3 + 3)])
    drive.rounds("bad", 4, iter([0] * 9))
    assert drive.tokens["bad"] == [*alone(any_tiny_model, [20, 21, 22], count=3), POISON]
    assert drive.engine.take_drafter("bad")
    result = drive.engine.speculate("bad", 2)
    assert (result.tokens, str(result.fault)) == ([], "poisoned")
    assert drive.engine.drafter.holder is None
    assert drive.engine.keys == ("decodes", "speculates", "bad")
    with pytest.raises(ValueError, match="'bad' is faulted"):
        drive.engine.speculate("bad", 0)
    drive.engine.drop("bad")
    assert drive.rounds("speculates") == alone(any_tiny_model, prompts["g0"])
    while len(drive.tokens["decodes"]) < 24:
        drive.decode()
    assert drive.tokens["decodes"][:24] == alone(any_tiny_model, prompts["g2"])


def test_a_prompt_that_the_model_fails_of_is_told_by_its_slice(tiny_model: Path) -> None:
    drive = drive_poisonable(tiny_model)
    for key, prompt in (("early", [20, POISON, 21, 22, 23]), ("late", [20, 21, 22, 23, POISON])):
        drive.admit(key, prompt)
        results = [drive.slice_zero(key, chunk=4)]
        if not results[-1].faults:
            results.append(drive.slice_zero(key, chunk=4))
        assert {name: str(fault) for name, fault in results[-1].faults.items()} == {key: "poisoned"}
        assert not any(result.tokens for result in results)
        drive.engine.drop(key)
    assert drive.engine.keys == ()


@pytest.mark.parametrize("right", [True, False])
@pytest.mark.parametrize("at", range(1, 7))
def test_a_processor_ends_its_sequence_where_plain_decoding_would(
    tiny_model: Path, at: int, right: bool
) -> None:
    prompt = [20, 21, 22]
    expected = alone(tiny_model, prompt, PENALISED)
    drive = SpeculativeDrive(tiny_model, knowing([*prompt, *expected], lambda position: not right))
    drive.start("g", prompt, PENALISED, processors=[FailAt(3 + at)])
    results: list[RoundResult] = []
    while "g" not in drive.faults:
        results.append(drive.round("g", 3))
    assert drive.tokens["g"] == expected[:at]
    assert isinstance(results[-1].fault, ProcessorFaultError)
    assert all(result.fault is None for result in results[:-1])
    drive.engine.drop("g")


def test_a_token_that_nobody_needs_cannot_fail_a_session(tiny_model: Path) -> None:
    prompt = [20, 21, 22]
    expected = alone(tiny_model, prompt)
    drive = SpeculativeDrive(tiny_model, knowing([*prompt, *expected]))
    for key in ("drops", "moves"):
        drive.start(key, prompt, processors=[FailAt(3 + 4)])
        result = drive.round(key, 5)
        # The fifth token has failed by now; that the fourth was the last may be found yet.
        assert (result.tokens, result.accepted, result.fault) == (expected[1:4], 3, None)
    drive.engine.drop("drops")
    drive.engine.into_classic("moves")
    assert drive.engine.decoding == 1
    assert isinstance(drive.decode().faults["moves"], ProcessorFaultError)
    assert drive.decode().faults == {}


def test_a_first_token_that_fails_is_told_by_slice_zero(tiny_model: Path) -> None:
    drive = SpeculativeDrive(tiny_model)
    drive.start("g", [20, 21], processors=[FailAt(0)])
    assert isinstance(drive.faults["g"], ProcessorFaultError)
    assert drive.tokens["g"] == []
    assert drive.engine.decoding == 0


def test_a_session_run_again_beside_others_disturbs_nobody(tiny_model: Path) -> None:
    drive = drive_poisonable(tiny_model)
    prompts = prompts_of(Drive(tiny_model))
    classic = {key: prompts[key] for key in ("g1", "g2", "g3")}
    for key, prompt in classic.items():
        drive.admit(key, prompt)
    drive.prefill(*classic)
    drive.drafter.script = lambda context, k: [POISON] * k
    drive.start("g0", prompts["g0"])
    for _ in range(4):
        assert len(drive.round("g0").tokens) == 1
        drive.decode()
    drive.engine.into_classic("g0")
    classic["g0"] = prompts["g0"]
    assert drive.decode_until(24) == each_alone(tiny_model, classic)


def test_logits_of_another_shape_are_a_fault(tiny_model: Path) -> None:
    def narrow(tokens: mx.array, logits: mx.array) -> mx.array:
        return logits[:, 1:] if len(tokens) == 4 else logits

    drive = SpeculativeDrive(tiny_model)
    drive.start("g", [20, 21], GREEDY, processors=[narrow])
    drive.rounds("g")
    assert "in place of" in str(drive.faults["g"])
    assert len(drive.tokens["g"]) == 2
