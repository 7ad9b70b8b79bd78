"""Two workers, three, two, four, ... every day: plan each rescale with the ones to come in mind."""

import tempfile
from pathlib import Path

import numpy as np

import meander as me

folder = Path(tempfile.mkdtemp())
spark = me.session()

rng = np.random.default_rng(7)
load = rng.permutation(24 / np.arange(1, 25) ** 0.4)  # work of 24 bins, and their bytes
state = np.rint(load * rng.uniform(50_000, 150_000, 24))

days = [2, 3, 4, 3, 2, 3, 2, 3, 4, 5, 4, 3] * 30  # how many workers there were, time and again
transitions = me.Transitions.of(days, lo=2, hi=5)
print(f"from 3 workers it goes to 2, 3, 4 and 5 with {np.round(transitions.row(3), 2)}")

outlook = me.pmc(spark, load, state, transitions, tau=0.3, gamma=0.8, path=folder / "outlook")
print(outlook)

moved = {}
for planner, options in (("ssm", {}), ("mtm", {"outlook": folder / "outlook"})):
    owner = me.plan(me.Problem(load, state, [0] * 24, 2, tau=0.3)).owner
    moved[planner] = 0
    for workers in days[1:100]:
        plan = me.plan(me.Problem(load, state, owner, workers, tau=0.3), planner, **options)
        assert not plan.notes  # the outlook fits
        owner = plan.owner
        moved[planner] += plan.cost

print(f"99 migrations: ssm moves {moved['ssm']:,.0f} bytes, mtm {moved['mtm']:,.0f}")
assert moved["mtm"] < moved["ssm"]
