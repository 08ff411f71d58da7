"""The process that runs a step on the head or on a host, and its child."""
