"""The soak: two queries for as long as one likes, rescaled every 20 s, with something killed every minute.

One driver program runs a query with sliding windows and late rows, and a join, on the same separate executors, from
files to files. Rows come at a steady pace. Every version of a sink is compared with a recount as it appears, and then
forgotten: a day takes no more memory and disk than an hour. Meanwhile memory, descriptors and files are sampled; at the
end their growth is extrapolated.

    audit       one query from outside: its rows, what must come of them, and whether it came
    program     the driver: both queries, and their rescales
    samples     memory and descriptors of processes, files of folders, minute by minute
    heap        what a JVM's heap holds after a collection
    slope       growth per hour of what was sampled
    soak        the whole: feeding, killing, looking, and the checks at the end
"""
