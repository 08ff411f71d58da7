"""Commands about a slice that a person develops on."""
