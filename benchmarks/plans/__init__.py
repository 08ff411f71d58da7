"""Cost of finding that no step has to run."""
