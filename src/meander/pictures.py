"""How values are shown: counts with their nouns; in notebooks facts, and bins by worker as a strip of colours.

The HTML is plain and has no script.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

COLOURS = ("#4477aa", "#ee6677", "#228833", "#ccbb44", "#66ccee", "#aa3377", "#997700", "#bbbbbb")
"""Told apart also by those who do not see all colours (Paul Tol's bright scheme)."""
WIDTH, HEIGHT = 640, 22
MOST_WORKERS = 64


def many(count: int, noun: str, plural: str = "") -> str:
    """A number with its noun.

    >>> many(1, "bin"), many(1200, "bin"), many(0, "query", "queries")
    ('1 bin', '1,200 bins', '0 queries')
    """
    return f"{count:,} {noun if count == 1 else plural or noun + 's'}"


def facts(title: str, rows: Mapping[str, object], *pictures: str) -> str:
    """A small table under a title, and pictures below it."""
    lines = "".join(
        f"<tr><th style='text-align:left'>{escape(name)}</th><td style='text-align:left'>{escape(str(value))}</td></tr>"
        for name, value in rows.items()
    )
    return f"<div><b>{escape(title)}</b><table>{lines}</table>{''.join(pictures)}</div>"


def bin_strip(owner: Sequence[int], name: str = "bins") -> str:
    """Who owns each bin: a stripe for each run of neighbours with one owner, and a legend."""
    if not owner:
        return f"<p>{escape(name)}: none</p>"
    stripes, start = [], 0
    for at in range(1, len(owner) + 1):
        if at == len(owner) or owner[at] != owner[start]:
            x, width = WIDTH * start / len(owner), WIDTH * (at - start) / len(owner)
            bins = f"bin {start}" if at == start + 1 else f"bins {start} to {at - 1}"
            stripes.append(
                f"<rect x='{x:.1f}' y='0' width='{width:.1f}' height='{HEIGHT}' fill='{_colour(owner[start])}'>"
                f"<title>{bins}: worker {owner[start]}</title></rect>"
            )
            start = at
    counts = {worker: sum(each == worker for each in owner) for worker in sorted(set(owner))}
    legend = " ".join(
        f"<span style='color:{_colour(worker)}'>&#9632;</span> {worker}: {count}"
        for worker, count in [*counts.items()][:MOST_WORKERS]
    )
    label = escape(f"{name}: {many(len(owner), 'bin')} on {many(len(counts), 'worker')}")
    picture = f"<svg role='img' aria-label='{label}' width='{WIDTH}' height='{HEIGHT}'>{''.join(stripes)}</svg>"
    return f"<figure style='margin:4px 0'><figcaption>{label}</figcaption>{picture}<div>{legend}</div></figure>"


def load_bars(load: Mapping[Any, float], name: str = "load of each worker") -> str:
    """A bar for each worker, the longest for the busiest."""
    most = max(load.values(), default=0.0) or 1.0
    bars = "".join(
        f"<div>{worker} <svg width='{WIDTH}' height='12' role='img' aria-label='worker {worker}: {value:.4g}'>"
        f"<rect width='{WIDTH * value / most:.1f}' height='12' fill='{_colour(worker)}'/></svg> {value:.4g}</div>"
        for worker, value in load.items()
    )
    return f"<figure style='margin:4px 0'><figcaption>{escape(name)}</figcaption>{bars}</figure>"


def progress_html(name: str, done: float, total: float | None, text: str) -> str:
    """How far something is: a bar with its name, and what there is to say beside it; moving where nobody knows."""
    known = "" if total is None else f" max='{max(total, 1):g}' value='{done:g}'"
    bar = f"<progress aria-label='{escape(name, quote=True)}'{known}></progress>"
    return f"<div>{escape(name)} {bar} {escape(text)}</div>"


def _colour(worker: int) -> str:
    return COLOURS[int(worker) % len(COLOURS)]
