"""The actor kernel. It knows nothing of memory."""
