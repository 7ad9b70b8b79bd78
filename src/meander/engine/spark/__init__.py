"""The ports of the driver on Spark. Only this package knows Spark, for the binned engine.

launch        starts a query: its driver, and the stream that feeds it
stream        Spark's batches; control_reader: rows of a control stream; backlog: rows that wait in the sources
cluster       the executors that are there
jobs          one attempt as one Spark job; exchange: rows to their worker; output: what a version emits
rehearsal     new executors run the job before they get bins; daemon: their Python has everything loaded
losses        what a failed job failed of, and a watchdog
gateway       the one module that reaches into Spark's JVM
"""
