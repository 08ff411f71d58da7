"""A local emulator of Google Cloud, on loopback."""
