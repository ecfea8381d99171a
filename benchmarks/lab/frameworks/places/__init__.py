"""Plugins of pytest, one for each framework, that put remora in the place of a framework's own."""
