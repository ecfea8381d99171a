"""One driver per library: its documented interface as a `benchmarks.lab.correctness` subject."""
