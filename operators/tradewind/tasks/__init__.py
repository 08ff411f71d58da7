"""What the tasks of several operators share. Operators stay thin."""
