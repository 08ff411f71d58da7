"""A slice that a person develops on, from the laptop: found, kept, given files and commands."""
