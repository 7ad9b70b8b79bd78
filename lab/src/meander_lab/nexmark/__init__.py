"""NEXMark: an auction house as a stream of persons, auctions and bids, and standing questions about it.

The packages and modules:

    model        what a person, an auction and a bid are
    generator    Beam's events, value for value, any range of them at once
    files        events in a folder: generated, or taken from a user's JSON lines
    source       events as a source of Spark, at a rate that does not wait for the query
    streams      the three streams that a query reads
    queries      the questions, one file each, on the public operators
    running      run one of them, move its bins meanwhile, and gather its final rows
"""
