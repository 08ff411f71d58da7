"""Demo of this repository: its nightly pipeline on this machine, with one command. Not part of the wheel."""
