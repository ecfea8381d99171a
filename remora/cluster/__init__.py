"""Several worker processes that share one memory, which a process of its own owns."""
