from hypothesis import given
from hypothesis import strategies as st

from signalbox.supervision.restarts import FIRST_DELAY_S, LONGEST_DELAY_S, REPEATED, WORKED_S, Restarts

lives = st.lists(st.floats(min_value=0, max_value=10_000), min_size=1, max_size=40)


@given(lives)
def test_a_restart_always_comes_and_never_later_than_the_longest_delay(lives: list[float]) -> None:
    restarts = Restarts()
    assert all(FIRST_DELAY_S <= restarts.ended(lived) <= LONGEST_DELAY_S for lived in lives)


@given(lives)
def test_after_a_long_life_the_restart_comes_at_once_again(lives: list[float]) -> None:
    restarts = Restarts()
    for lived in lives:
        restarts.ended(lived)
    assert restarts.ended(WORKED_S) == FIRST_DELAY_S
    assert not restarts.repeated


def test_short_lives_in_a_row_are_restarted_ever_later_and_then_reported() -> None:
    restarts = Restarts()
    delays = []
    reported = []
    for _ in range(REPEATED + 4):
        delays.append(restarts.ended(0.1))
        reported.append(restarts.repeated)
    assert delays == sorted(delays)
    assert delays[-1] == LONGEST_DELAY_S
    assert reported == [False] * (REPEATED - 1) + [True] * 5
