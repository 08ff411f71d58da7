"""Our Ray clusters: one file that describes them all, and what is made from it."""
