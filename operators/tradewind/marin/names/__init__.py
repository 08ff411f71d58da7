"""Marin's own names of November 2025 that experiments call while steps are built, rewritten.

Each module here replaces one of Marin's; ``legacy/marin.json`` says which. ``legacy.modules.modules()`` returns them
under Marin's names. The classes declare Marin's module as theirs, because a cluster finds them there.
"""
