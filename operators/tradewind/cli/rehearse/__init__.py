"""Commands that rehearse: a cloud, a drill."""
