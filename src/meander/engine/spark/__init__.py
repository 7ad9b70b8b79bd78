"""The ports of the driver on Spark. Only this package knows Spark, for the binned engine.

launch        starts a query: its driver, and the stream that feeds it
stream        Spark's batches, how many rows wait in the sources, and the rows of a control stream
cluster       the executors that are there, and how new ones rehearse before they get bins
sizing        how many workers a query has when nobody says
jobs          one attempt as one Spark job, what a failed one failed of, and a watchdog
exchange      rows to their worker, and what a version emits
gateway       the one module that reaches into Spark's JVM
daemon        the process that Spark's Python workers are forked from, with everything loaded
"""
