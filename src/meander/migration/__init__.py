"""How bins change hands while the stream runs: copy, flip, release. Pure; Spark may not enter.

Reading order:

    steps        one bin that changes hands (`Shift`), those that do so together (`Step`), and cutting plans into them
    update       what a worker installs and releases: a function of what it holds and of what it is told
    protocol     the state machine: events in, instructions out
    journal      the machine as JSON, so that another driver can go on with it
    progress     how far a migration is, and what it did to the stream
    simulator    a whole stream in one process, with faults, that drives the machine in tests; with
                 simulated_controller and simulated_worker

A bin is first copied to its new owner, version by version, while the old one goes on with it. Once the new owner lacks
nothing but the last delta, the bin flips: from one version on the new owner gets its rows, and applies that delta
first. The old owner keeps its copy for a few versions more, and then releases it. No row ever waits, and none is sent
to a worker that does not own its bin.
"""

from __future__ import annotations
