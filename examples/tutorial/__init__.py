"""The steps of the tutorial; docs/tutorial/an-agent-that-remembers.md explains them."""
