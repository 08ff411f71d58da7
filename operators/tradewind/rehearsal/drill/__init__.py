"""A training under faults, judged from outside."""
