"""Delete and recreate dead slices, under the repair lock."""
