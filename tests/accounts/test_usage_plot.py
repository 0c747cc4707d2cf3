"""Usage as a plot: nothing is lost on the way into it, and nothing stands outside of it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from django.template.loader import render_to_string
from hypothesis import given
from hypothesis import strategies as st

from accounts.usage_plot import HEADROOM, HEIGHT, MOST_SERIES, OTHERS, Amount, Plot, compact, draw

_ZONE = ZoneInfo("Europe/Berlin")
_FIRST = datetime(2026, 3, 1, tzinfo=_ZONE)


def days(count: int) -> list[datetime]:
    return [(_FIRST + timedelta(days=n)).astimezone(UTC) for n in range(count)]


def plot_of(amounts: list[Amount], count: int = 30) -> Plot:
    *starts, until = days(count + 1)
    return draw(amounts, starts=starts, until=until, zone=_ZONE, title="Tokens by day and lane")


_AMOUNTS = st.lists(
    st.builds(
        Amount,
        at=st.sampled_from(days(30)),
        series=st.sampled_from([f"key {n}" for n in range(12)]),
        value=st.integers(0, 2**62),
    ),
    max_size=60,
)


@given(_AMOUNTS)
def test_every_token_is_in_a_column_the_table_and_the_legend(amounts: list[Amount]) -> None:
    plot = plot_of(amounts)
    total = sum(amount.value for amount in amounts)
    assert plot.total == total
    assert sum(column.total for column in plot.columns) == total
    assert sum(series.total for series in plot.legend) == total
    for place, series in enumerate(plot.legend):
        assert sum(column.values[place] for column in plot.columns) == series.total
    for start, column in zip(days(30), plot.columns, strict=True):
        assert column.total == sum(amount.value for amount in amounts if amount.at == start)


@given(_AMOUNTS)
def test_everything_stands_inside_the_plot_and_parts_stand_on_each_other(amounts: list[Amount]) -> None:
    plot = plot_of(amounts)
    for column in plot.columns:
        assert 0 <= column.place_x <= column.x
        assert column.x + column.width <= column.place_x + column.place_width + 0.01 <= 100.02
        floor = float(plot.height)
        for part in column.parts:
            assert abs(part.y + part.height - floor) < 0.03
            floor = part.y
        assert floor >= HEADROOM - 0.02
    assert plot.values_axis[0].at == plot.height == HEIGHT + HEADROOM
    assert plot.values_axis[-1].at == HEADROOM
    assert 2 <= len(plot.values_axis) <= 6


def test_the_smallest_series_are_one_where_there_are_too_many() -> None:
    at = days(1)[0]
    plot = plot_of([Amount(at, f"key {n:02}", 100 - n) for n in range(20)])
    assert [series.colour for series in plot.legend] == list(range(MOST_SERIES + 1))
    assert plot.legend[0].name == "key 00"
    assert plot.legend[-1].name == OTHERS
    assert plot.legend[-1].total == sum(100 - n for n in range(MOST_SERIES, 20))


def test_one_more_than_have_a_colour_need_no_others() -> None:
    at = days(1)[0]
    plot = plot_of([Amount(at, f"key {n}", 10) for n in range(MOST_SERIES + 1)])
    assert OTHERS not in [series.name for series in plot.legend]


def test_an_amount_outside_of_all_columns_is_an_error_and_not_lost() -> None:
    with pytest.raises(ValueError, match="no column"):
        plot_of([Amount(_FIRST + timedelta(hours=1), "low", 1)])


def test_times_are_told_in_the_zone_of_the_reader() -> None:
    *starts, until = [datetime(2026, 3, 28, 22, tzinfo=UTC) + timedelta(hours=n) for n in range(8)]
    plot = draw([Amount(starts[1], "low", 5)], starts=starts, until=until, zone=_ZONE, title="Tokens by hour")
    # The clocks go from 2 to 3 in that night.
    assert plot.columns[3].when == "29 Mar 2026, 03:00 to 04:00"
    assert [tick.label for tick in plot.time_axis] == [
        "23:00",
        "29 Mar",
        "01:00",
        "03:00",
        "04:00",
        "05:00",
        "06:00",
    ]
    assert plot.description == "5 tokens all together. Most: 5, on 29 Mar 2026, 00:00 to 01:00."


def test_a_day_of_the_calendar_is_named_and_not_measured() -> None:
    plot = plot_of([], count=31)
    assert plot.columns[0].when == "Sun 1 Mar 2026"
    assert plot.columns[-1].when == "Tue 31 Mar 2026"
    assert [tick.label for tick in plot.time_axis] == ["1 Mar", "6", "11", "16", "21", "26", "31"]


@pytest.mark.parametrize("each", [timedelta(days=1), timedelta(hours=1)])
def test_a_month_is_named_where_it_begins_and_not_with_each_of_its_days(each: timedelta) -> None:
    first, week = datetime(2026, 11, 27, tzinfo=UTC), timedelta(days=7)
    starts = [first + n * each for n in range(week // each)]
    plot = draw([], starts=starts, until=first + week, zone=ZoneInfo("UTC"), title="Tokens by day or hour")
    assert [tick.label for tick in plot.time_axis] == ["27 Nov", "28", "29", "30", "1 Dec", "2", "3"]


@pytest.mark.parametrize(
    ("value", "said"), [(0, "0"), (950, "950"), (1500, "1.5k"), (20_000_000, "20M"), (4 * 10**12, "4T")]
)
def test_numbers_at_the_axis_are_short(value: int, said: str) -> None:
    assert compact(value) == said


def test_the_drawing_says_everything_in_words_and_has_no_style_of_its_own() -> None:
    at = days(3)
    plot = plot_of([Amount(at[0], "low", 1200), Amount(at[2], "<high>", 34)])
    page = render_to_string("signalbox/usage_plot.html", {"plot": plot})
    assert 'aria-labelledby="usage-title usage-description"' in page
    assert "Sun 1 Mar 2026, low: 1,200 tokens" in page
    assert "&lt;high&gt;" in page
    assert "<high>" not in page
    assert "style=" not in page
    assert '<td class="usage-number">1,234</td>' in page


def test_where_nothing_was_used_that_is_said_and_nothing_drawn() -> None:
    page = render_to_string("signalbox/usage_plot.html", {"plot": plot_of([])})
    assert "Nothing was used in this time." in page
    assert "<svg" not in page
