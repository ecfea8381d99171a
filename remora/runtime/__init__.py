"""The actor runtime. Its core knows nothing of memory; `system` puts everything together."""
