"""What a training says of itself while it runs."""
