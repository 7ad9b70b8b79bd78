"""From a key to its bin: the same hash as in the JVM, and typed keys as plain arrays.

Pure: Arrow columns in, NumPy arrays out. The package depends on no state, operator or Spark.
"""
