"""The results as a picture: time of a step against its peak. Written by hand, so that nothing has to be installed."""

from __future__ import annotations

from typing import Any, Dict, List, Tuple
from xml.sax.saxutils import escape

MIB = 1 << 20
WIDTH, HEIGHT = 860, 520
LEFT, RIGHT, TOP, BOTTOM = 70, 200, 50, 55
GROUPS = (
    ("ours-compiled", "#0b6e4f"),
    ("ours-selective", "#5f9ea0"),
    ("ours-host", "#8e44ad"),
    ("ours", "#1f77b4"),
    ("compile", "#d35400"),
    ("", "#555555"),
)


def _color(way: str) -> str:
    return next(color for prefix, color in GROUPS if way.startswith(prefix))


def _ticks(low: float, high: float, count: int = 6) -> List[float]:
    step = (high - low) / count or 1.0
    scale = 10 ** len(str(int(max(step, 1)))) / 10
    step = max(round(step / scale), 1) * scale
    first = int(low / step) * step
    return [first + step * index for index in range(int((high - first) / step) + 2) if low <= first + step * index <= high]


def plot(config: Dict[str, Any], rows: List[Dict[str, Any]]) -> str:
    points: List[Tuple[str, float, float]] = [
        (row["way"], row["peak_bytes"] / MIB, row["step_ms"])
        for row in rows
        if "failed" not in row and row["peak_bytes"] is not None
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>'
        f'<text x="{LEFT}" y="24" font-size="15">{escape(config["model"])}: batch {config["batch"]}, T={config["length"]}, '
        f'{escape(config["dtype"])}, {escape(config["device"])}</text>'
    )
    if not points:
        return head + f'<text x="{LEFT}" y="{HEIGHT / 2}">nothing was measured</text></svg>\n'
    least_x, most_x = min(x for _, x, _ in points), max(x for _, x, _ in points)
    least_y, most_y = min(y for _, _, y in points), max(y for _, _, y in points)
    pad_x, pad_y = (most_x - least_x) * 0.06 or 1, (most_y - least_y) * 0.08 or 1
    low_x, high_x, low_y, high_y = least_x - pad_x, most_x + pad_x, least_y - pad_y, most_y + pad_y

    def at(x: float, y: float) -> Tuple[float, float]:
        across = LEFT + (x - low_x) / (high_x - low_x) * (WIDTH - LEFT - RIGHT)
        down = HEIGHT - BOTTOM - (y - low_y) / (high_y - low_y) * (HEIGHT - TOP - BOTTOM)
        return round(across, 1), round(down, 1)

    parts = [head]
    for tick in _ticks(low_x, high_x):
        across, _ = at(tick, low_y)
        parts.append(f'<path d="M{across} {TOP}V{HEIGHT - BOTTOM}" stroke="#eee"/>')
        parts.append(f'<text x="{across}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{tick:,.0f}</text>')
    for tick in _ticks(low_y, high_y):
        _, down = at(low_x, tick)
        parts.append(f'<path d="M{LEFT} {down}H{WIDTH - RIGHT}" stroke="#eee"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{down + 4}" text-anchor="end">{tick:,.0f}</text>')
    parts.append(f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">peak, MiB</text>')
    parts.append(f'<text x="16" y="{HEIGHT / 2}" transform="rotate(-90 16 {HEIGHT / 2})" text-anchor="middle">step, ms</text>')
    for prefix, color in GROUPS:
        if not prefix.startswith("ours"):
            continue
        row = sorted((x, y) for way, x, y in points if way.startswith(prefix + "@"))
        if len(row) > 1:
            path = "L".join("{} {}".format(*at(x, y)) for x, y in row)
            parts.append(f'<path d="M{path}" fill="none" stroke="{color}" stroke-width="2"/>')
    for way, x, y in points:
        across, down = at(x, y)
        parts.append(
            f'<circle cx="{across}" cy="{down}" r="4" fill="{_color(way)}"><title>{escape(way)}: {y:.1f} ms, '
            f"{x:,.0f} MiB</title></circle>"
        )
        if not way.startswith("ours"):
            parts.append(f'<text x="{across + 7}" y="{down - 6}" fill="{_color(way)}">{escape(way)}</text>')
    seen = [prefix for prefix, _ in GROUPS if prefix.startswith("ours") and any(w.startswith(prefix + "@") for w, _, _ in points)]
    for line, prefix in enumerate(seen):
        down = TOP + 16 + line * 18
        parts.append(f'<circle cx="{WIDTH - RIGHT + 20}" cy="{down - 4}" r="4" fill="{_color(prefix)}"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 30}" y="{down}">{escape(prefix)}</text>')
    return "\n".join(parts) + "\n</svg>\n"
