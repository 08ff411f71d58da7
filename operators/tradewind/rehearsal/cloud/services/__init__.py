"""Services of the loopback Google Cloud that the fleet is managed with."""
