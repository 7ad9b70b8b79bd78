"""The matrix: everything that is broken on purpose, in every phase of a query, on real processes.

    faults x phases -> cells -> results -> table

A cell is a fault in a phase, under an operator and a sink. Its driver runs in a process of its own, on separate
executors. Where it reaches the phase a hook holds it until the fault is done; then it goes on or is started again. In
the end the oracle recounts the sink's rows, the state and the late rows, and looks for what was left on disk.

    faults      what a fault is; those of executors, drivers and disks are in `on_...`
    phases      where a driver is held: hooks in the driver's process
    workloads   the operators: rows, and their recount in plain Python
    rows        tables of rows, and their times
    program     the driver of a cell
    oracle      what must hold at the end
    cell        one cell from its first row to its result
    table       results in a file, one a line, and as a table

Nothing here is part of the product: hooks are put around its methods in the driver's process.
"""
