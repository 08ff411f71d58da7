"""Levanter: its config, its parts, its models."""
