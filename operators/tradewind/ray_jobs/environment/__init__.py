"""What a Ray job's processes find: code, packages, variables."""
