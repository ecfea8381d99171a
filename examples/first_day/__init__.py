"""Ten tasks of the first day with remora, each a file that runs."""
