"""Commands that the lab adds to `meander`."""
