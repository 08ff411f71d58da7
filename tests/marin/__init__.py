"""Marin's experiment files as DAGs."""
