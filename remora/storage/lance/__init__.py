"""Long-term memory in LanceDB."""
