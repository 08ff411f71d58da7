"""Steps that read many runs: comparisons, the best run, and scaling laws."""
