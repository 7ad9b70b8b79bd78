"""The driver of the binned engine: it makes versions. Spark may not enter.

The way of a batch, and the module that does it:

    batch_loop    a batch or an idle tick becomes a version: attempts, delivery, manifest
    attempts      one try after the other, until every worker has reported once
    version       who takes part in a version, and the control message of each
    commit        what the version did, for the manifest and for people; how far event time is
    delivery      a version's output into the sink: prepared before the manifest, committed after it
    conversion    state of a changed query on its way to a new layout, in slices
    placement     which worker is on which executor; executors that come first

`driver` puts them together, `run` is the driver as those see it who move bins, `ports` what it asks of the world. Also:
settings, monitor (what policies look at), hook.
"""
