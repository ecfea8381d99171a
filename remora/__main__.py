"""``python -m remora``."""

from remora.cli.main import run

run()
