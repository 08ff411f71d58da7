"""The fleet file: read with line numbers, checked, and turned into values."""
