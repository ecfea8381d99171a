"""The content of an export, and its two forms."""
