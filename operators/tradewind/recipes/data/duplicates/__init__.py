"""Texts that occur more than once, exactly or almost."""
