"""A job's log, each line once."""
