"""How bins change hands while the stream runs: copy, flip, release. For both engines; Spark may not enter.

What moves, and when:
    steps            one bin that changes hands (`OperatorMove`), and those that do so together (`Step`)
    budget           how much at a time
    protocol         the state machine: events in, instructions out; journal: the machine as JSON
    ledger, record   what is known of every bin, for plans and from version to version
    holdings         what workers are believed to hold; orders: what a version asks of each
    coordinator      the protocol, its consequences for the next version, and repairs after losses
What users ask for:
    request          what is wanted, checked, and the plan that comes of it; modes: ways to carry it out
    movable          the port to an engine
    handle, mover    one migration, and one after the other; report, bar, events
    control_stream   moves that come as data

A bin is first copied to its new owner, version by version, while the old one goes on with it. Once the new owner lacks
nothing but the last delta, the bin flips: from one version on the new owner gets its rows, and applies that delta
first. The old owner keeps its copy for a few versions more, and then releases it. No row ever waits, and none is sent
to a worker that does not own its bin.
"""
