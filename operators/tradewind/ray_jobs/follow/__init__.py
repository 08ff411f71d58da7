"""From a submitted job to how it ended."""
