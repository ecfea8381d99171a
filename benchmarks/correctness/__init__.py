"""The same programs against remora and the libraries that it is compared with: what is lost,
doubled, refused, left behind.
"""
