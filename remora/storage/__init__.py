"""Storage: the ports, the journal (SQLite) and long-term memory (LanceDB)."""
