"""When a benchmark may begin."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from benchmarks.trust import refuse_when_busy

_LINUX = {
    "user": 1.0,
    "nice": 0.0,
    "system": 1.0,
    "idle": 98.0,
    "iowait": 0.0,
    "irq": 0.0,
    "softirq": 0.0,
    "steal": 0.0,
}


def sampled(**times: float) -> None:
    refuse_when_busy(lambda seconds: SimpleNamespace(**{**_LINUX, **times}))


@pytest.mark.parametrize(
    "times",
    [
        {},
        {"idle": 4.0, "nice": 94.0},
        {"idle": 4.0, "iowait": 94.0},
        {"idle": 4.0, "guest_nice": 94.0},
        {"idle": 90.1, "user": 8.9},
    ],
)
def test_a_quiet_machine_and_one_whose_work_yields_will_do(times: dict[str, float]) -> None:
    sampled(**times)


@pytest.mark.parametrize("kind", ["user", "system", "steal", "softirq"])
def test_what_does_not_yield_refuses(kind: str) -> None:
    with pytest.raises(SystemExit, match="others use 52% of the processors"):
        sampled(**{kind: _LINUX[kind] + 50.0, "idle": 48.0})


def test_macos_which_tells_of_less_is_read_as_well() -> None:
    quiet = SimpleNamespace(user=2.0, nice=50.0, system=1.0, idle=47.0)
    refuse_when_busy(lambda seconds: quiet)
    with pytest.raises(SystemExit):
        refuse_when_busy(lambda seconds: SimpleNamespace(user=60.0, nice=0.0, system=1.0, idle=39.0))


def test_the_real_machine_can_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.trust._WATCH_S", 0.05)
    monkeypatch.setattr("benchmarks.trust._BUSY_SHARE", 1.0)
    refuse_when_busy()
