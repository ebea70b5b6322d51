"""Draws roofline.svg beside this file from the figures of one-h200.json: python3 docs/kernels/roofline.py"""

import json
import math
from pathlib import Path

HERE = Path(__file__).resolve().parent
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 860, 520, 90, 30, 50, 60
X, Y = (1.0, 3000.0), (1e8, 2e15)  # FLOP a byte; FLOP a second
SERIES = (  # list, figure, colour, what it is, whether filled
    ("decode", "ours", "#1b6ca8", "decode, ours", True),
    ("decode", "upstream", "#1b6ca8", "decode, SGLang 0.5.16", False),
    ("logits", "ours", "#c2571a", "indexer, ours", True),
    ("logits", "upstream", "#c2571a", "indexer, SGLang 0.5.16", False),
)


def along(value: float, ends: tuple[float, float], first: float, last: float) -> float:
    low, high = map(math.log10, ends)
    return first + (math.log10(value) - low) / (high - low) * (last - first)


def x(value: float) -> float:
    return along(value, X, LEFT, WIDTH - RIGHT)


def y(value: float) -> float:
    return along(value, Y, HEIGHT - BOTTOM, TOP)


def text(at_x: float, at_y: float, words: str, anchor: str = "start", more: str = "") -> str:
    return f'<text x="{at_x:.1f}" y="{at_y:.1f}" text-anchor="{anchor}" {more}>{words}</text>'


def line(ends: tuple[float, float, float, float], style: str) -> str:
    return '<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" {}/>'.format(*ends, style)


def drawing(figures: dict) -> str:
    bandwidth, peak = figures["bytes_per_s"], figures["flop_per_s"]
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" ',
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        text(
            LEFT,
            26,
            f"Needed work a second against needed work a byte: {figures['gpu'].split(',')[0]}",
            more='font-size="16"',
        ),
    ]
    for power in range(8, 16):
        parts.append(line((LEFT, y(10**power), WIDTH - RIGHT, y(10**power)), 'stroke="#ddd"'))
        label = {8: "0.1 G", 9: "1 G", 10: "10 G", 11: "100 G", 12: "1 T", 13: "10 T", 14: "100 T", 15: "1,000 T"}[
            power
        ]
        parts.append(text(LEFT - 8, y(10**power) + 4, label, "end"))
    for value in (1, 10, 100, 1000):
        parts.append(line((x(value), TOP, x(value), HEIGHT - BOTTOM), 'stroke="#ddd"'))
        parts.append(text(x(value), HEIGHT - BOTTOM + 18, f"{value:,}", "middle"))
    parts.append(text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 16, "FLOP a byte that has to be read or written", "middle"))
    parts.append(text(LEFT - 8, TOP - 8, "FLOP/s", "end"))
    ridge = peak / bandwidth
    roof = 'stroke="#333" stroke-width="2"'
    parts.append(line((x(X[0]), y(bandwidth * X[0]), x(ridge), y(peak)), roof))
    parts.append(line((x(ridge), y(peak), x(X[1]), y(peak)), roof))
    parts.append(text(x(X[1]) - 4, y(peak) - 8, f"BF16 product {peak / 1e12:,.0f} TFLOP/s", "end"))
    parts.append(text(x(1.2), y(bandwidth * 4), f"copy {bandwidth / 1e9:,.0f} GB/s"))
    for name, figure, colour, _, filled in SERIES:
        for case in figures[name]:
            speed = case["flop"] / case[figure] * 1e6
            look = f'fill="{colour if filled else "white"}" stroke="{colour}" stroke-width="1.5"'
            parts.append(f'<circle cx="{x(case["flop"] / case["bytes"]):.1f}" cy="{y(speed):.1f}" r="4.5" {look}/>')
    for place, (_, _, colour, words, filled) in enumerate(SERIES):
        at = HEIGHT - BOTTOM - 84 + 20 * place
        look = f'fill="{colour if filled else "white"}" stroke="{colour}" stroke-width="1.5"'
        parts.append(f'<circle cx="{LEFT + 18}" cy="{at}" r="4.5" {look}/>')
        parts.append(text(LEFT + 30, at + 4, words))
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    (HERE / "roofline.svg").write_text(drawing(json.loads((HERE / "one-h200.json").read_text())))
