"""Machines of their own on this one: each in namespaces of the kernel, with an address and an SSH server. For root."""
