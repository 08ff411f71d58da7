"""Texts in files become token caches: what is read, how it is cut into tokens, and where the tokens are kept."""
