"""The drawing of one generation's time: what happened in, shapes out. Pure: no clock, no database, no markup.

Each claim is a row: the wait before it, its prompt chunk by chunk, its tokens as columns as high as they came fast,
below them when it had the speculative slot, and marks for what happened at a moment. All rows share one axis, from the
moment the generation was accepted. Horizontal values are percent of the drawing's width, so that it fits any screen.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from accounts.formatting import lasted
from inference.admin import timeline_words as words
from inference.admin.timeline_shapes import FLOOR, HEIGHT, Bar, Drawing, DrawnBar, DrawnMark, Mark, Row, Tick
from inference.models import RunOutcome
from inference.runs import Event, EventKind

#: How high bars are, in pixels.
_TALL: Final = 36
_LOW: Final = 8
#: In the strip below the floor.
_HAS_SLOT: Final = 6
_WAITS_FOR_SLOT: Final = 2
#: The narrowest bar, in percent: what took no time to speak of can still be seen, and pointed at.
_NARROWEST: Final = 0.2
#: Rows that are drawn; of more claims the first are in the table only.
MOST_ROWS: Final = 12
_MOST_TICKS: Final = 6
_MINUTE: Final = 60
_HOUR: Final = 3600
_STEPS_OF_MINUTES: Final = (30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 28800, 86400)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One claim as it was reported. Times are seconds since the generation was accepted."""

    epoch: int
    worker: str
    claimed: float
    ended: float
    outcome: RunOutcome
    events: Sequence[Event] = ()
    worker_url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """All that is known of a generation's time, in seconds since it was accepted.

    ``epoch``: its newest. ``claimed``: when that was claimed. ``until``: its end, or now while it lives.
    """

    lane: str
    lane_rank: int
    epoch: int
    live: bool
    until: float
    claimed: float | None = None
    cancel_asked: float | None = None
    runs: Sequence[Run] = ()


def draw(story: Story) -> Drawing:
    """The whole picture."""
    latest = max((run.ended for run in story.runs), default=0.0)
    axis = _Axis(max(story.until, latest, story.claimed or 0.0, 0.001))
    rows = list(_rows(story, axis))
    for row in rows:  # a cancel may have been asked for in the middle of what else is told
        row.lines.sort(key=lambda line: line.at)
    return Drawing(
        rows=rows[-MOST_ROWS:],
        undrawn=rows[:-MOST_ROWS],
        ticks=[Tick(x=axis.x(at), label=label) for at, label in ticks(axis.total)],
        total=lasted(axis.total),
        live=story.live,
        lane=story.lane,
        lane_rank=story.lane_rank,
    )


def ticks(total: float) -> list[tuple[float, str]]:
    """Round moments from 0 to ``total`` seconds, at most seven, and how they are written: the last with its unit."""
    step = _step(total)
    moments = [i * step for i in range(int(total / step + 1e-9) + 1)]
    if total >= 2 * _HOUR:
        unit, written = "h", [_clock(at / _MINUTE) for at in moments]
    elif total >= 2 * _MINUTE:
        unit, written = "min", [_clock(at) for at in moments]
    else:
        unit, scale = ("ms", 1000.0) if total < 1 else ("s", 1.0)
        digits = max(0, -math.floor(math.log10(step * scale) + 1e-9))
        written = [f"{at * scale:.{digits}f}" for at in moments]
    return list(zip(moments, ["0", *written[1:-1], f"{written[-1]} {unit}"], strict=True))


@dataclass(frozen=True, slots=True)
class _Axis:
    total: float

    def x(self, at: float) -> float:
        return round(100 * min(1.0, max(0.0, at / self.total)), 3)

    def extent(self, start: float, end: float) -> tuple[float, float]:
        """Where a bar begins and how wide it is: inside the drawing, and never too narrow to be seen."""
        width = max(self.x(end) - self.x(start), _NARROWEST)
        return min(self.x(start), round(100 - width, 3)), round(width, 3)


def _rows(story: Story, axis: _Axis) -> Iterable[Row]:
    runs = {run.epoch: run for run in story.runs}
    waiting_since, number = 0.0, 0
    lost_since: float | None = None
    fastest = words.top_rate(
        [event[2] for run in story.runs for event in run.events if event[1] == EventKind.TOKENS]
    )
    for epoch in range(1, story.epoch + 1):
        run = runs.get(epoch)
        if run is None and story.claimed is None:  # only a withdrawal takes an epoch without a claim
            break
        if run is not None and run.outcome is RunOutcome.WITHDRAWN:
            yield _withdrawn(story, run, waiting_since, axis)
            return
        number += 1
        if run is None and epoch == story.epoch and story.live and story.claimed is not None:
            yield _running(story, number, story.claimed, waiting_since, axis)
            return
        if run is None:
            if lost_since is None:
                lost_since = waiting_since
            waiting_since = _lost_until(story, epoch, lost_since)
            yield _unreported(story, number, epoch, lost_since, waiting_since, axis)
            continue
        lost_since = None
        yield _reported(story, run, number, waiting_since, fastest, axis)
        waiting_since = max(waiting_since, run.ended)
    if story.live or not number:
        row = Row(name="Now", state="waiting") if story.live else Row(name="Never claimed", state="ended")
        _wait(row, story, waiting_since, story.until, axis)
        _cancel_asked(row, story, waiting_since, story.until, axis)
        yield row


def _reported(story: Story, run: Run, number: int, waiting_since: float, fastest: float, axis: _Axis) -> Row:
    row = Row(
        name=f"Run {number}",
        state=run.outcome.label,
        outcome=run.outcome,
        worker=run.worker,
        worker_url=run.worker_url,
        facts=words.facts(run.events),
    )
    _wait(row, story, waiting_since, run.claimed, axis)
    _cancel_asked(row, story, waiting_since, run.ended, axis)
    chunks = 0
    for event in run.events:
        at, kind, _ = event
        if kind == EventKind.ENDED:
            continue
        line = words.line_of(event)
        row.lines.append(line)
        match kind:
            case EventKind.CHUNK:
                chunks += 1
                row.bars.append(_chunk(event, line.title, axis, odd=chunks % 2 == 0))
            case EventKind.TOKENS:
                row.bars.append(_tokens(event, line.title, fastest, axis))
            case EventKind.SLOT_GRANT:
                row.bars.append(_slot(Bar.SLOT_GRANT, event, _HAS_SLOT, line.title, axis))
            case EventKind.SLOT_WAIT:
                row.bars.append(_slot(Bar.SLOT_WAIT, event, _WAITS_FOR_SLOT, line.title, axis))
            case EventKind.FIRST_TOKEN | EventKind.CACHE_HIT:
                row.marks.append(DrawnMark(kind=Mark(kind), x=axis.x(at), title=line.title))
    _end(row, run, axis)
    return row


def _running(story: Story, number: int, claimed: float, waiting_since: float, axis: _Axis) -> Row:
    row = Row(name=f"Run {number}", state="running")
    _wait(row, story, waiting_since, claimed, axis)
    _cancel_asked(row, story, waiting_since, story.until, axis)
    line = words.Line(claimed, story.until - claimed, "Running", "what it does is shown when the run is over")
    row.lines.append(line)
    row.bars.append(_bar(Bar.RUNNING, claimed, story.until, _TALL, line.title, axis))
    return row


def _lost_until(story: Story, epoch: int, since: float) -> float:
    """When a claim that nobody reported was over at the latest."""
    if epoch == story.epoch:
        return max(since, story.until)
    later = [run.claimed for run in story.runs if run.epoch > epoch]
    return max(since, min(later, default=since if story.claimed is None else story.claimed))


def _unreported(story: Story, number: int, epoch: int, since: float, until: float, axis: _Axis) -> Row:
    row = Row(name=f"Run {number}", state=RunOutcome.LOST.label, outcome=RunOutcome.LOST)
    meaning = "claimed somewhere in this time by a worker that could not report it"
    if epoch == story.epoch and story.claimed is not None and since <= story.claimed <= until:
        _wait(row, story, since, story.claimed, axis)
        since, meaning = story.claimed, "its worker could not report it"
    line = words.Line(since, until - since, "Lost", meaning)
    row.lines.append(line)
    row.bars.append(_bar(Bar.UNREPORTED, since, until, _TALL, line.title, axis))
    return row


def _withdrawn(story: Story, run: Run, waiting_since: float, axis: _Axis) -> Row:
    row = Row(
        name="Never claimed" if run.epoch == 1 else "Waiting again", state="withdrawn", outcome=run.outcome
    )
    _wait(row, story, waiting_since, run.ended, axis)
    _cancel_asked(row, story, waiting_since, run.ended, axis)
    row.lines.extend(words.line_of(event) for event in run.events)
    _end(row, run, axis)
    return row


def _end(row: Row, run: Run, axis: _Axis) -> None:
    line = words.end_of(run.outcome, run.ended, _last_details(run))
    row.marks.append(DrawnMark(kind=Mark.END, x=axis.x(run.ended), title=line.title, outcome=run.outcome))
    row.lines.append(line)


def _wait(row: Row, story: Story, since: float, until: float, axis: _Axis) -> None:
    if until <= since:
        return
    line = words.Line(since, until - since, "Waiting", f"in lane {story.lane}")
    row.lines.append(line)
    row.bars.append(_bar(Bar.WAITING, since, until, _LOW, line.title, axis))


def _cancel_asked(row: Row, story: Story, since: float, until: float, axis: _Axis) -> None:
    at = story.cancel_asked
    if at is not None and since <= at <= until:
        line = words.Line(at, None, "Cancel asked for", "")
        row.lines.append(line)
        row.marks.append(DrawnMark(kind=Mark.CANCEL_ASKED, x=axis.x(at), title=line.title))


def _chunk(event: Event, title: str, axis: _Axis, *, odd: bool) -> DrawnBar:
    at, _, details = event
    x, width = axis.extent(at, at + details.get("s", 0.0))
    return DrawnBar(
        kind=Bar.CHUNK,
        x=x,
        width=width,
        y=FLOOR - _TALL,
        height=_TALL,
        title=title,
        odd=odd,
        merged=details.get("merged", 1) > 1,
    )


def _tokens(event: Event, title: str, fastest: float, axis: _Axis) -> DrawnBar:
    at, _, details = event
    rate = words.rate_of(details)
    share = 1.0 if rate is None or not fastest else min(1.0, rate / fastest)
    return _bar(Bar.TOKENS, at, at + details.get("s", 0.0), max(2.0, _TALL * share), title, axis)


def _slot(kind: Bar, event: Event, height: int, title: str, axis: _Axis) -> DrawnBar:
    at, _, details = event
    x, width = axis.extent(at, at + details.get("s", 0.0))
    y = HEIGHT + (_HAS_SLOT - height) / 2
    return DrawnBar(kind=kind, x=x, width=width, y=y, height=height, title=title)


def _bar(kind: Bar, start: float, end: float, height: float, title: str, axis: _Axis) -> DrawnBar:
    x, width = axis.extent(start, end)
    tall = round(height, 2)
    return DrawnBar(kind=kind, x=x, width=width, y=round(FLOOR - tall, 2), height=tall, title=title)


def _last_details(run: Run) -> dict[str, Any]:
    return run.events[-1][2] if run.events and run.events[-1][1] == EventKind.ENDED else {}


def _step(total: float) -> float:
    """The smallest round step that gives at most ``_MOST_TICKS`` intervals."""
    if total >= 2 * _MINUTE:
        fitting = (step for step in _STEPS_OF_MINUTES if total / step <= _MOST_TICKS)
        return next(fitting, math.ceil(total / _MOST_TICKS / 86400) * 86400)
    power = 10.0 ** math.floor(math.log10(total / _MOST_TICKS))
    return next(
        step for step in (power, 2 * power, 5 * power, 10 * power, 20 * power) if total / step <= _MOST_TICKS
    )


def _clock(of_sixty: float) -> str:
    """Seconds as minutes and seconds, or minutes as hours and minutes."""
    whole, part = divmod(round(of_sixty), 60)
    return f"{whole}:{part:02}"
