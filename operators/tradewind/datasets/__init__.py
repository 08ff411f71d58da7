"""Data sets: download, clean and tokenize them."""
