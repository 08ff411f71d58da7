"""What it takes to find out that nothing need run."""
