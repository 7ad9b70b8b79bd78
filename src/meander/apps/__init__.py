"""The papers' own applications, on the public API: how a user would write them, and what the experiments run.

tweets     made-up tweets: words as skewed as language, with topics that become hot for a while
source     tweets, or the lines of a text, as a stream at an open-loop rate
words      words of lines, counted
patterns   maximal frequent word combinations of a sliding window
loop       what a version has found out comes back as rows of a later one
"""
