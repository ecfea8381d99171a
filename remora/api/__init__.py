"""What an application holds: the runtime, its handles, and the tools for models."""
