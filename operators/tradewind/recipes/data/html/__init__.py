"""Texts of web pages."""
