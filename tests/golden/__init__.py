"""Journals of each released format, and what they must read as for ever."""
