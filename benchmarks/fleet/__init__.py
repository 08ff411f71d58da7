"""What keeping a fleet costs: a round of repair over eight zones, and the cluster files of a hundred clusters."""
