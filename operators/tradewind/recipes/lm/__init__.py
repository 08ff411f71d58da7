"""Training of any Levanter config."""
