"""Properties that hold of whatever hypothesis draws.

Two thirds of a test's examples are the same in every run, and one third is new in each:
`tests.example_runs`. An example that failed is kept in `tests/examples`, where the next run tries
it first. git ignores that folder: commit one for the others by ``git add --force``, or better write
it into the test, by ``@example``.
"""
