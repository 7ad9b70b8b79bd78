"""A worker has to leave: hand its bins over, two at a time, one quiet batch in between."""

import meander as me

problem = me.Problem(
    load=[3, 1, 4, 1, 5, 9, 2, 6],
    state=[31, 15, 92, 65, 35, 89, 79, 32],
    owner=[0, 0, 0, 1, 1, 2, 2, 2],
    workers=2,
    tau=0.25,
    must_leave=[1],
)
plan = me.plan(problem, "free")
now = me.Assignment.initial(problem.owner, batch=100)
steps = me.schedule(plan.before, plan.owner, "batched", state=problem.state, max_bins=2, gap=1)
for batch, step in enumerate(steps, start=101):
    now = now.with_flips(step, batch)
    print(f"batch {batch}: {len(step)} bins flip, owners {now.owner}")
assert now.owner == plan.owner
assert 1 not in now.workers
