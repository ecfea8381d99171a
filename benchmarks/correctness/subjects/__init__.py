"""One driver per library: its documented interface as a `benchmarks.correctness` subject."""
