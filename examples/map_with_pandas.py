"""A function over keys that gets its rows as a DataFrame: each sensor's reading beside its mean so far."""

import pandas as pd

import meander as me


def compare(sensor, rows: pd.DataFrame, state):
    """Add what is usual for this sensor; the annotation asks for pandas."""
    count, total = state.count or 0, state.total or 0.0
    usual = total / count if count else float("nan")
    state.update(count=count + len(rows), total=total + rows["celsius"].sum())
    yield rows.assign(usual=usual)[["sensor", "celsius", "usual"]]


readings = me.stream(me.testing.source("sensor string, celsius double")).key_by("sensor")
compared = readings.map_with_state(
    compare, state="count long, total double", output="sensor string, celsius double, usual double"
)
with me.testing.harness(compared) as h:
    h.batch([{"sensor": "attic", "celsius": degrees} for degrees in (20.0, 22.0)])
    h.rescale(3)
    (row,) = h.batch([{"sensor": "attic", "celsius": 30.0}])
print(f"{row['sensor']}: {row['celsius']} degrees, usual are {row['usual']}")
assert row["usual"] == 21.0
