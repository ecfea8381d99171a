"""Memory as actors: state machines over plain data, without I/O of their own."""
