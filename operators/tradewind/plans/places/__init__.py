"""Where steps may write, and where their data lies."""
