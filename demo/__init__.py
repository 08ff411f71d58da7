"""The demo of this repository: its nightly pipeline on this machine, with one command. No part of the wheel."""
