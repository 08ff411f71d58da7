"""What no DAG needs any more, and how it is taken away."""
