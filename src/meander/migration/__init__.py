"""How bins change hands while the stream runs: copy, flip, release. For both engines; Spark may not enter.

What moves, and when:
    steps            one bin that changes hands (`OperatorMove`), those that do so together (`Step`), how much at a time
    orders           what goes into the protocol and what comes out: events, instructions, orders for one version
    protocol         the state machine, and its journal: the machine as JSON
    ledger           what is known of every bin, for plans and from version to version; what workers hold
    coordinator      the protocol, its consequences for the next version, and repairs after losses
What users ask for:
    request          what is wanted, the ways to carry it out, and the plan that comes of it
    mover            requests checked, and carried out one after the other
    movable          the port to an engine
    events           what happened, and who listens
    handle, report   one migration: how far it is and what it did
    control_stream   moves that come as data, and control_rows: those that were accepted

A bin is first copied to its new owner, version by version, while the old one goes on with it. Once the new owner lacks
nothing but the last delta, the bin flips: from one version on the new owner gets its rows, and applies that delta
first. The old owner keeps its copy for a few versions more, and then releases it. No row ever waits, and none is sent
to a worker that does not own its bin.
"""
