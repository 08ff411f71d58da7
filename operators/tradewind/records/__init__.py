"""Records beside each output, on any fsspec store: lease, status, step info, attempts and manifest."""
