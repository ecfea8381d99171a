"""The application's side: the runtime, its handles, and the tools for models."""
