"""The laboratory of Meander: what compares, measures and repeats, and does not belong into a production install.

    nexmark        the field's benchmark: events and queries
    apps           the papers' own applications
    replay         a history of worker counts once more, with planners to compare
    experiments    the papers' figures, ours beside theirs
    planners       baselines and oracles
    modes          other ways of moving bins, to compare the live one with
    benchmarks     what `./dev bench` runs
    cli            the commands `meander nexmark`, `meander simulate` and `meander experiment`

It builds on Meander, and Meander finds it through entry points only.
"""
