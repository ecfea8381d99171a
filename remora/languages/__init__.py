"""The languages of texts: which one a text is in, and the words by which it is searched."""
