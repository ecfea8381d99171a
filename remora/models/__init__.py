"""Ports to models, and the embedded defaults that need no key and no network."""
