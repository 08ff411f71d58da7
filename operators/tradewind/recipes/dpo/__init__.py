"""Direct preference optimization with Levanter."""
