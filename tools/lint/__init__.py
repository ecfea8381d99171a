"""Rules of this repository that ruff does not have; ``python -m tools.lint`` applies them."""
