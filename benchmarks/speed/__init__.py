"""How fast remora is, compared with its peers and its physical limits; see `__main__`."""
