"""Commands about the jobs of a Ray cluster."""
