"""What `./dev bench NAME` runs: one module for each benchmark, with its parts beside it (NAME_part)."""
