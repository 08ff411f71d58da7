"""What a person needs before a cluster can be started, looked at and said with how to mend it."""
