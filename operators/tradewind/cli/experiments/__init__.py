"""Commands about an experiment's steps and outputs."""
