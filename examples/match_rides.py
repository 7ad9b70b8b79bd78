"""Passenger orders and the taxis near them: two streams joined by the cell of a map and by how far apart they are."""

import tempfile
from pathlib import Path

import meander as me
from meander_lab.apps.pairs import streams
from meander_lab.apps.rides import Rides, distance_km

NEAR_KM = 0.3


def is_near(pairs):
    """Whether the taxi of each pair is close enough to the passenger."""
    return distance_km(pairs["lon"], pairs["lat"], pairs["lon_right"], pairs["lat_right"]) <= NEAR_KM


spark, folder = me.session(), Path(tempfile.mkdtemp())
city = Rides(seed=7, order=6)  # made up; a cell is about 520 m by 430 m
orders, tracks = streams(spark, city, rate=(50, 1000), rows=(200, 4000), start=1_790_000_000)

# Where each taxi was in the five seconds before the order.
matched = me.stream(orders).join(tracks, on="cell", within=("5 seconds", 0), where=is_near)
pairs = me.sinks.memory("pairs")
matched.start(folder / "checkpoint", pairs, workers=2, trigger={"availableNow": True}).await_termination()

nearest = {}
for row in pairs.to_arrow().to_pylist():
    far_m = 1000 * float(distance_km(row["lon"], row["lat"], row["lon_right"], row["lat_right"]))
    this = (far_m, row["taxi_id"])
    nearest[row["order_id"]] = min(this, nearest.get(row["order_id"], this))
print("order      taxi       metres")
for order, (far_m, taxi) in sorted(nearest.items(), key=lambda each: each[1])[:5]:
    print(f"{order:9}  {taxi:9}  {far_m:6.0f}")
print(f"{len(nearest)} of 200 orders have a taxi within {NEAR_KM:.1f} km in their cell")
assert len(nearest) == 52
assert all(far_m <= 1000 * NEAR_KM for far_m, _ in nearest.values())
