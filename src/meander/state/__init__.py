"""Keyed state in bins: what is committed, and what one batch makes of it.

    the way of a batch
      base      the committed rows of one table, in memory-mapped files; changed by `apply(delta)` alone
      table     what an operator sees: this batch's own rows (overlay) over the base; ends in a delta
      holding   all tables of one worker and stage, their version, and the mark of a change that was cut off

Reading order: `spec` (what a table is made of), `columns` and `records` (Arrow columns and keys as words), `extents`
(space in a file), `layout` (where a bin's parts lie), `binfiles` (a table's files), `changes` (a delta as arrays),
`base`, `overlay`, `table`, `holding`; then what is built on tables: `multimap`, `timers`, and `declare` with the
`views` that users see. Files that end in _kernel hold compiled inner loops.

Pure: NumPy, Arrow and files. Nothing here knows of checkpoints, operators or Spark.
"""
