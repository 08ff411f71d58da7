"""Fetch a list of addresses into WARC files."""
