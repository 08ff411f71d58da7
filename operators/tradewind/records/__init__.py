"""What has run: status, step info and attempts beside each output, on any fsspec store."""
