import pytest

from inference.messages import Heartbeat
from signalbox.health import NotReady, Service, judge
from tests.heartbeats import make_heartbeat

NOW = 1_000.0


def beat(
    model: str = "m", *, ready: bool = True, draining: bool = False, progressed_at: float = NOW - 1
) -> Heartbeat:
    return make_heartbeat(NOW, model=model, ready=ready, draining=draining, progressed_at=progressed_at)


@pytest.mark.parametrize(
    ("beats", "expected", "reason", "service"),
    [
        ([beat()], {"m"}, None, Service.SERVED),
        ([beat()], set(), None, Service.SERVED),
        ([], {"m"}, NotReady.WORKER_GONE, Service.GONE),
        ([beat(progressed_at=NOW - 60)], {"m"}, NotReady.NO_PROGRESS, Service.STALLED),
        ([beat(progressed_at=NOW - 60), beat()], {"m"}, None, Service.SERVED),
        ([beat(ready=False)], {"m"}, NotReady.NOTHING_SERVED, Service.LOADING),
        ([beat(draining=True)], set(), NotReady.NOTHING_SERVED, Service.DRAINING),
        ([beat(draining=True), beat()], set(), None, Service.SERVED),
    ],
)
def test_the_site_is_ready_while_a_worker_of_each_served_model_makes_progress(
    beats: list[Heartbeat], expected: set[str], reason: NotReady | None, service: Service
) -> None:
    readiness = judge(beats, expected, now=NOW, progress_within_s=15)
    assert readiness.reason == reason
    assert readiness.models == {"m": service}


def test_one_models_lost_worker_makes_the_site_unready_although_another_is_served() -> None:
    readiness = judge([beat("a")], {"a", "b"}, now=NOW, progress_within_s=15)
    assert readiness.reason is NotReady.WORKER_GONE
    assert readiness.models == {"a": Service.SERVED, "b": Service.GONE}


def test_nothing_is_ready_where_nothing_was_ever_served() -> None:
    assert judge([], set(), now=NOW, progress_within_s=15).reason is NotReady.NOTHING_SERVED
