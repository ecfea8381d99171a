"""A directory without actors: verify, repair, backup, export, import."""
