"""The binned engine on Spark, and the only room besides `query` that imports it.

The way of one batch, and the module that does it:

    running     a query while it runs: what Spark calls for every batch, the clock for idle times, the user's handle
    engine      on the driver: one version, from rows to manifest; attempts, fencing
    pipeline    the stages as one Spark job, or in waves where a batch is too large to hand over
    exchange    key -> bin -> slot in the JVM, one shuffle, and the hand-over of Arrow chunks with a control message
    task        in a Python process of the executor: lock, check, bring the base forward, run the operator, write
    messages    what the two tell each other: `Control` down, `Report` up, JSON
    bring       there too: the base to the version before; incoming and outgoing: rows in and out
    places      which executors there are; seats: which worker sits where; here: on which executor a process is
    provenance  whether checkpoint, Spark's part of it and query belong together
    sinks       where the output goes
    session     a fitting SparkSession, and which settings of another one would break us

Private classes of Spark are touched in `gateway` alone.
"""
