"""Code shared by the tasks of several operators. Operators stay thin."""
