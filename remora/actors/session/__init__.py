"""A session's actor: its messages, its state, its decisions, and the window that it shows."""
