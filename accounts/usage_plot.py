"""Usage over time as a plot: columns stacked by what they belong to, ready for ``signalbox/usage_plot.html``. Pure.

It says where everything stands (across in percent of the width, down in pixels of ``HEIGHT``) and what it is called;
the template writes the SVG, a style sheet has the colours. The same numbers stand in a table beside it.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

#: Of the columns' area, in pixels.
HEIGHT: Final = 200
#: Above the highest gridline, for its label.
HEADROOM: Final = 10
#: How many series have a colour of their own; the smaller ones beyond are drawn as one.
MOST_SERIES: Final = 7
OTHERS: Final = "all others"

_TICKS: Final = 4
_LABELS: Final = 7
_ROUND_HOURS: Final = (1, 2, 3, 4, 6, 12, 24)
#: Nearer to the end of the axis than so much, in percent, a label stands before its place: there is no room behind.
_EDGE: Final = 5
#: The part of its place that a column fills.
_FILL: Final = 0.78
_ALMOST_A_DAY: Final = timedelta(hours=22)


@dataclass(frozen=True, slots=True)
class Amount:
    """What one series used in the column that begins at ``at``."""

    at: datetime
    series: str
    value: int


@dataclass(frozen=True, slots=True)
class Part:
    """One series' share of a column. ``colour`` is the series' place in the legend, from 0 on."""

    y: float
    height: float
    colour: int
    title: str


@dataclass(frozen=True, slots=True)
class Column:
    """One bucket of time. ``values`` stand in the order of the legend, for the table."""

    x: float
    width: float
    #: Of the whole place that the column stands in: what is pointed at.
    place_x: float
    place_width: float
    title: str
    when: str
    parts: tuple[Part, ...]
    values: tuple[int, ...]
    total: int

    @property
    def cells(self) -> tuple[str, ...]:
        """Its row of the table, the total last."""
        return tuple(f"{value:,}" for value in (*self.values, self.total))


@dataclass(frozen=True, slots=True)
class Series:
    """An entry of the legend."""

    name: str
    colour: int
    total: int


@dataclass(frozen=True, slots=True)
class Tick:
    """A label at an axis, and where it stands. ``anchor``: ``middle``, or ``end`` where it would stick out."""

    at: float
    label: str
    anchor: str = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A whole plot. ``name`` tells its elements' ids from those of another plot on the page."""

    name: str
    title: str
    description: str
    unit: str
    columns: tuple[Column, ...]
    legend: tuple[Series, ...]
    values_axis: tuple[Tick, ...]
    time_axis: tuple[Tick, ...]
    total: int
    height: int = HEIGHT + HEADROOM

    @property
    def totals(self) -> tuple[str, ...]:
        """The last row of the table."""
        return tuple(f"{total:,}" for total in (*(series.total for series in self.legend), self.total))

    @property
    def used(self) -> tuple[Column, ...]:
        """The columns in which there is anything: the rows of the table."""
        return tuple(column for column in self.columns if column.total)


def draw(
    amounts: Iterable[Amount],
    *,
    starts: Sequence[datetime],
    until: datetime,
    zone: ZoneInfo,
    title: str,
    unit: str = "tokens",
    name: str = "usage",
) -> Plot:
    """A plot of ``amounts``: one column from each of ``starts`` to the next, the last one until ``until``.

    ``starts`` ascend; an amount belongs to the column that begins exactly at its time. Times are told in ``zone``.
    Raises ``ValueError`` for an amount that no column begins at.
    """
    by_column: dict[datetime, defaultdict[str, int]] = {start: defaultdict(int) for start in starts}
    totals: defaultdict[str, int] = defaultdict(int)
    for amount in amounts:
        if amount.at not in by_column:
            raise ValueError(f"no column of the plot begins at {amount.at.isoformat()}")
        by_column[amount.at][amount.series] += amount.value
        totals[amount.series] += amount.value
    legend = _legend(totals)
    place_of = {series.name: series.colour for series in legend}
    rows = [_row(of, place_of, len(legend)) for of in by_column.values()]
    most = max((sum(row) for row in rows), default=0)
    step = _step(most)
    top = step * max(1, -(-most // step))
    ends = [*starts[1:], until]
    whens = [_when(start, end, zone) for start, end in zip(starts, ends, strict=True)]
    columns = tuple(
        _column(index, len(rows), row, when, legend, top, unit)
        for index, (row, when) in enumerate(zip(rows, whens, strict=True))
    )
    return Plot(
        name=name,
        title=title,
        description=_description(columns, unit),
        unit=unit,
        columns=columns,
        legend=legend,
        values_axis=_values_axis(top, step),
        time_axis=_time_axis(starts, ends, zone),
        total=sum(totals.values()),
    )


def compact(value: float) -> str:
    """A number for an axis: 950, 1.5k, 20M."""
    for size, letter in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (10**3, "k")):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"


def _legend(totals: dict[str, int]) -> tuple[Series, ...]:
    """The series, the largest first; the smallest as one where they are too many."""
    ranked = sorted(totals.items(), key=lambda item: (-item[1], item[0]))
    if len(ranked) > MOST_SERIES + 1:
        rest = sum(total for _, total in ranked[MOST_SERIES:])
        ranked = [*ranked[:MOST_SERIES], (OTHERS, rest)]
    return tuple(Series(name, colour, total) for colour, (name, total) in enumerate(ranked))


def _row(of: dict[str, int], place_of: dict[str, int], width: int) -> list[int]:
    row = [0] * width
    for series, value in of.items():
        row[place_of.get(series, width - 1)] += value
    return row


def _column(
    index: int, count: int, row: list[int], when: str, legend: Sequence[Series], top: int, unit: str
) -> Column:
    place = 100 / count
    parts, below = [], 0
    for series, value in zip(legend, row, strict=True):
        if value:
            height = value / top * HEIGHT
            y = HEADROOM + HEIGHT - (below + value) / top * HEIGHT
            title = f"{when}, {series.name}: {value:,} {unit}"
            parts.append(Part(round(y, 2), round(height, 2), series.colour, title))
        below += value
    return Column(
        x=round(place * (index + (1 - _FILL) / 2), 3),
        width=round(place * _FILL, 3),
        place_x=round(place * index, 3),
        place_width=round(place, 3),
        title=f"{when}: {below:,} {unit}",
        when=when,
        parts=tuple(parts),
        values=tuple(row),
        total=below,
    )


def _step(most: int) -> int:
    """The distance between gridlines: 1, 2, 2.5 or 5 times a power of ten, whole, and so that few are enough."""
    rough = max(1, -(-most // _TICKS))
    power: int = 10 ** (len(str(rough)) - 1)
    steps = (power, 2 * power, *([5 * power // 2] if power > 1 else []), 5 * power, 10 * power)
    return next(step for step in steps if step >= rough)


def _values_axis(top: int, step: int) -> tuple[Tick, ...]:
    return tuple(
        Tick(round(HEADROOM + HEIGHT - value / top * HEIGHT, 2), compact(value))
        for value in range(0, top + 1, step)
    )


def _time_axis(starts: Sequence[datetime], ends: Sequence[datetime], zone: ZoneInfo) -> tuple[Tick, ...]:
    """So few and short labels that they have room on a phone.

    Of days, with the month's name where one begins; or of round hours, with the day's name at midnight.
    """
    local_starts = [start.astimezone(zone) for start in starts]
    count = len(starts)
    if any(end - start >= _ALMOST_A_DAY for start, end in zip(starts, ends, strict=True)):
        every = math.ceil(count / _LABELS)
        labels = _day_labels({index: local_starts[index] for index in range(0, count, every)})
    else:
        hours = next((step for step in _ROUND_HOURS if count / step <= _LABELS), _ROUND_HOURS[-1])
        round_hours = {
            index: local
            for index, local in enumerate(local_starts)
            if local.hour % hours == 0 and local.minute == 0
        }
        if hours == _ROUND_HOURS[-1]:
            labels = _day_labels(round_hours)
        else:
            labels = {
                index: f"{local:%H:%M}" if local.hour else _day(local) for index, local in round_hours.items()
            }
    return tuple(_tick(100 / count * (index + 0.5), label) for index, label in labels.items())


def _day_labels(days: Mapping[int, datetime]) -> dict[int, str]:
    labels: dict[int, str] = {}
    month = None
    for index, day in days.items():
        labels[index] = _day(day) if day.month != month else str(day.day)
        month = day.month
    return labels


def _tick(at: float, label: str) -> Tick:
    return Tick(round(at, 3), label, "end" if at > 100 - _EDGE else "middle")


def _when(start: datetime, end: datetime, zone: ZoneInfo) -> str:
    local = start.astimezone(zone)
    if end - start >= _ALMOST_A_DAY:
        return f"{local:%a} {_day(local)} {local.year}"
    return f"{_day(local)} {local.year}, {local:%H:%M} to {end.astimezone(zone):%H:%M}"


def _day(local: datetime) -> str:
    return f"{local.day} {local:%b}"


def _description(columns: Sequence[Column], unit: str) -> str:
    total = sum(column.total for column in columns)
    if not total:
        return "Nothing was used in this time."
    most = max(columns, key=lambda column: column.total)
    return f"{total:,} {unit} all together. Most: {most.total:,}, on {most.when}."
