"""Keyed state in bins: the committed rows, and the changes of one batch.

    the path of a batch
      base      the committed rows of one table, in memory-mapped files; changed by `apply(delta)` alone
      table     what an operator sees: the rows of this batch (overlay) over the base; gives a delta
      holding   all tables of one worker and operator, their version, and the mark of an interrupted change

Reading order: `spec` (definition of a table), `slot_hash` (which slot a key has), `columns` (Arrow columns and keys as
words), `extents` (space in a file), `binfiles` (a table's files, and where a bin's parts lie), `base`, `overlay`,
`table`, `holding`; then the structures on top of tables: `spans` of joins, and `declare` with the `views` that users
see, which take `frames` of pandas too. Files that end in _kernel hold the larger compiled loops; small ones stand
beside their callers.

Pure: NumPy, Arrow and files. The package depends on no checkpoint, operator or Spark.
"""
