"""One driver for each library: its documented interface behind
`benchmarks.correctness.protocol.Subject`.
"""
