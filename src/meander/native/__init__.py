"""Queries people already have: which executor holds which of Spark's own state partitions, seen and steered.

A query of plain Structured Streaming keeps its state in partitions, and Spark decides where each one is. A partition is
here what a bin is elsewhere, and an executor what a worker is. Partitions that one task uses together, those of all
stateful operators of one stage of Spark, are a *group*: they move together.

What is seen is a value (`observation`), and other terminals can read it (`publish`); Spark may not enter those two.
"""
