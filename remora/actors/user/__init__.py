"""A user's actor: working memory, the synopsis, what was remembered."""
