"""Plans: what a run will do, and why."""
