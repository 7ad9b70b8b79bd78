"""A worker is added: what moves, in which steps, and whether it is right."""

import meander as me

problem = me.Problem(
    load=[30, 5, 5, 10, 10, 20, 5, 15],
    state=[300, 50, 40, 100, 90, 210, 60, 150],
    owner=[0, 0, 0, 0, 1, 1, 1, 1],
    workers=3,
    tau=0.2,
)
for name in ("ssm", "free"):
    plan = me.plan(problem, name)
    me.check(problem, plan)
    print(f"{name:4} moves {plan.cost:4} of {plan.cost + plan.gain} bytes, loads {plan.loads}")

best = me.plan(problem, "free")
for number, step in enumerate(me.schedule(best.before, best.owner, "matching", state=problem.state), start=1):
    print(f"step {number}:", ", ".join(f"bin {move.bin} {move.source} -> {move.target}" for move in step))
