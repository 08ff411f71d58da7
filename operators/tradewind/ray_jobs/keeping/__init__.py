"""Jobs that outlive a restart of their cluster: whose they are, what is kept of them, and how they come back."""
