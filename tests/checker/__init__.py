"""The judge of remora's guarantees.

It draws programs of calls, plays them against a runtime in the simulation, and decides whether one
order of events explains every answer. ``python -m tests.checker SEEDS`` runs it; see
docs/explanation/simulation.md.
"""
