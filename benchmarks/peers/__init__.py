"""The libraries that remora is compared with: pinned distributions, virtual environments."""
