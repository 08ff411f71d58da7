"""Run an experiment as a script, on this machine."""
