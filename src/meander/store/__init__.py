"""The checkpoint: the committed versions, and the files that restore every bin. Files and JSON, no Spark, no pickle.

location     a folder with whole files and exclusive create      uri         what users name as a folder
statefile    rows of several tables, readable bin by bin         entries     the contents of a manifest
files        names, storing, reading, inline or not; seals       index       snapshot and deltas of each bin
manifest     the log: claim, commit, fencing                     retention   files that no kept version needs
identity     which query the state belongs to                    verify      every checksum and every link
spark_logs   Spark's own logs, made durable and mended           reader      state and side outputs as Arrow tables
side         late and dead rows of old versions                  bitmap      sets of bins
rollback     going back to an older version                      backup      a copy of one moment
design       what the query is as of a version                   evolution   how it may change between two starts
changes      what has changed of one operator                    convert     rows of older files, newly laid out
repair       what can be mended                                  lookup      which rows are wanted, and their bins
"""
