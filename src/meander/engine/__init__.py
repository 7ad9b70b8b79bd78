"""The binned engine: Meander's own operators over columnar state in bins.

    driver    what decides, one version after the other: pure Python, in one process
    worker    what runs in a Python process of an executor: pure Python too
    spark     the two ports of the driver on Spark, and nothing else

Driver and worker never import Spark; the same code runs in one process in `meander.testing`.
"""
