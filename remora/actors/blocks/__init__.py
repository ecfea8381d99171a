"""Memory blocks: long-term memory in pieces that an application chooses."""
