"""Commands about slices that people make."""
