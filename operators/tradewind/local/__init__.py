"""An experiment as a script, on this machine."""
