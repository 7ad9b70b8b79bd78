"""Planners to compare with: what Storm, hash rings and Gedik's partitioning function would do, and a slow oracle."""
