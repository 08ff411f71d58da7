"""Marin's own names of November 2025 that experiments call while steps are built, written anew.

Each module here stands for one of Marin's; ``era/tables/marin.json`` says for which. ``era.modules()`` hands them out
under Marin's names, and the classes say that they come from there, because that is where a cluster finds them.
"""
