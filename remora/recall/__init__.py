"""Finding memories, and assembling a context from them."""
