"""A scatter plot as SVG, in colours that read on light and dark pages."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape

_WIDTH, _HEIGHT = 760, 420
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 220, 20, 50


def scatter(points: Mapping[str, tuple[float, float]], *, across: str, up: str) -> str:
    """Each named point ``(x, y)`` with its name beside it; both axes logarithmic, both begin below the least value."""
    xs, ys = [x for x, _ in points.values()], [y for _, y in points.values()]
    x_range, y_range = (min(xs) / 1.3, max(xs) * 1.3), (min(ys) / 1.3, max(ys) * 1.3)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'font-family="system-ui, sans-serif" font-size="12" fill="#7a7f87">',
        f"<title>{escape(up)} against {escape(across)}</title>",
        f'<path d="M{_LEFT} {_TOP}V{_HEIGHT - _BOTTOM}H{_WIDTH - _RIGHT}" fill="none" stroke="#7a7f87"/>',
        f'<text x="{_LEFT}" y="{_HEIGHT - 12}">{escape(across)}</text>',
        f'<text x="16" y="{_HEIGHT - _BOTTOM}" transform="rotate(-90 16 {_HEIGHT - _BOTTOM})">{escape(up)}</text>',
    ]
    for value in _ticks(*x_range):
        x = _place(value, x_range, _LEFT, _WIDTH - _RIGHT)
        parts.append(f'<text x="{x:.0f}" y="{_HEIGHT - _BOTTOM + 16}" text-anchor="middle">{value:g}</text>')
    for value in _ticks(*y_range):
        y = _place(value, y_range, _HEIGHT - _BOTTOM, _TOP)
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4:.0f}" text-anchor="end">{value:g}</text>')
    for name, (x_value, y_value) in points.items():
        x = _place(x_value, x_range, _LEFT, _WIDTH - _RIGHT)
        y = _place(y_value, y_range, _HEIGHT - _BOTTOM, _TOP)
        colour = "#c2410c" if "server" in name else "#0f8b8d"
        parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" fill="{colour}"/>')
        parts.append(f'<text x="{x + 9:.1f}" y="{y + 4:.1f}">{escape(name)}</text>')
    return "\n".join([*parts, "</svg>\n"])


def _place(value: float, between: tuple[float, float], start: float, end: float) -> float:
    low, high = (math.log(bound) for bound in between)
    return start + (math.log(value) - low) / (high - low) * (end - start)


def _ticks(low: float, high: float) -> list[float]:
    """1, 2 and 5 of every decade within the range; where that is fewer than three, all whole steps."""
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = [(1, 2, 5), range(1, 10)]
    ticks = [
        [step * 10**decade for decade in decades for step in of if low <= step * 10**decade <= high]
        for of in steps
    ]
    return ticks[0] if len(ticks[0]) > 2 else ticks[1]
