"""Evaluate models: harnesses against a served model, scores with intervals, records and comparisons."""
