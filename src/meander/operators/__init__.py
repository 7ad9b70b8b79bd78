"""What a stream computes: one file per operator, each an operator over keyed tables.

    operator      what an operator is: rows and tables in, changed rows out; the user's class form, me.Operator
    count         rows per key                      aggregate     sum, min, max, mean, count, first, last
    dedup         the first row of each key         top_k         the best rows of each key
    window        tumbling, sliding and sessions    fold          a function over rows and state
    join          pairs of rows of two streams      custom        a user's class as an operator
    map_state     a function over keys and state    flat_map      a function over rows

    sessions, accumulators, sums, ordering, times, pairs, conform      their building blocks
    functions, plain_rows, key_state                                   and those of functions of the user's own

Update semantics: every batch emits the keys that changed, with their new values. No answer depends on the order in
which the rows of a batch arrive. Pure: NumPy and Arrow over `state` and `route`; no Spark.
"""
