"""A session's actor: what it is told, what it is, what it decides, what it shows."""
