"""Demo: the nightly pipeline on this machine, with one command. Not part of the wheel."""
