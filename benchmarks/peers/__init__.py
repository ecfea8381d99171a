"""The libraries that remora is compared with: their pinned distributions and their virtual
environments.
"""
