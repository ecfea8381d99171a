"""Choices as pure functions: what leaves a buffer, what a memory is worth, what is pruned."""
