"""Whose turn it is at an output: how a turn starts, is kept, is waited for, is stopped and ends."""
