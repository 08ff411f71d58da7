"""Steps that read many runs: what came of each, which one is best, and what follows from all of them."""
