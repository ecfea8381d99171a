"""The parts of the soak: faults, callers with their records, and what is measured."""
