"""A memory over HTTP, for programs that are not Python in the same process."""
