"""The differences between operating systems, one module for each concern.

Nothing above asks which system it runs on: it calls what is here. The choice is made once, when a
module is imported.
"""
