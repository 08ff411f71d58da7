"""The jobs of people over whatever restarts their cluster."""
