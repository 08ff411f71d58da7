"""Tasks that run a step."""
