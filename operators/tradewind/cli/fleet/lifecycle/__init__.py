"""Commands that start, stop and change clusters, and that show how they are."""
