"""The papers' own applications, on the public API: how a user would write them, and what the experiments run.

tweets     made-up tweets: words as skewed as language, with topics that become hot for a while
source     tweets, or the lines of a text, as a stream at an open-loop rate
words      words of lines, counted
patterns   maximal frequent word combinations of a sliding window
loop       what a version has found out comes back as rows of a later one
hilbert    places as numbers along Hilbert's curve, to join by the cell
zipf       two streams with keys by Zipf's law
rides      passenger orders and taxi tracks of a city whose hot spots move
pairs      both sides of a join as streams at an open-loop rate
"""
