"""How long one call of each public verb holds the event loop, with the largest input it accepts.

``python -m benchmarks.lag`` prints a table; see `benchmarks.lag.__main__`.
"""
