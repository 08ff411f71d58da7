"""Google Cloud on loopback."""
