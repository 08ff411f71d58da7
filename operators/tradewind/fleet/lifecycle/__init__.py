"""Clusters are started, stopped, changed and looked at: what to do is decided apart from doing it."""
