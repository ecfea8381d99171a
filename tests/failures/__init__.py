"""Failures of machines that share a memory: `table` has them, `talk` judges what sessions saw."""
