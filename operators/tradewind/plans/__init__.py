"""What will run and why."""
