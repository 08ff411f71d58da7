"""Which slices there are, which are free, and which a pod has reserved."""
