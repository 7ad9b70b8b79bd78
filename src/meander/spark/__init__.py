"""The binned engine on Spark, and the only room besides `query` that imports it.

The way of one batch, and the module that does it:

    loop        on the driver: one batch, from rows to manifest; attempts, idle ticks, fencing
    exchange    key -> bin -> slot in the JVM, one shuffle, and the hand-over of Arrow chunks with a control message
    task        in a Python process of the executor: lock, check, bring the base forward, run the operator, write
    messages    what the two tell each other: `Control` down, `Report` up, JSON
    places      which executors there are and which worker sits where
    sinks       where the output goes
    session     a fitting SparkSession, and which settings of another one would break us

Private classes of Spark are touched in `gateway` alone.
"""
