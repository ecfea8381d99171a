"""How fast remora is, beside its peers and its physical limits: one command, one table; see
`__main__`.
"""
