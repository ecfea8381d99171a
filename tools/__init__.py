"""Scripts that keep the repository true; none is part of the package."""
