"""The services that handles use."""
