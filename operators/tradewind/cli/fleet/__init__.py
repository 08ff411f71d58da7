"""Commands about the clusters of the fleet file."""
