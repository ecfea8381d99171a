"""The parts of the soak: the weather, the callers with their witness, and what is weighed."""
