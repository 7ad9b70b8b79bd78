"""What a rescale would move, before it is done: a proposal under several options, and then the migration itself."""

import meander as me

words = me.stream(me.testing.source("word string")).key_by("word").count()
with me.testing.harness(words, workers=2, bins=64) as h:
    h.batch([{"word": f"word {n % 500}"} for n in range(2000)])

    gently = me.MoveOptions(schedule="fluid")
    proposals: dict[str, me.Proposal] = {
        "free, few steps": h.query.plan_rescale(3),
        "ssm, neighbours stay together": h.query.plan_rescale(3, planner="ssm"),
        "one bin at a time": h.query.plan_rescale(3, gently),
    }
    for name, proposal in proposals.items():
        print(f"{name:30} {proposal.bins:3} bins, {proposal.bytes:6,} bytes, {len(proposal.steps):3} steps")
    assert h.query.workers == [0, 1], "nothing has moved"

    migration: me.Migration = h.rescale(3, options=gently)
    report: me.Report = migration.report
    assert (report.bins, report.outcome) == (proposals["one bin at a time"].bins, "done")
    print(report)
