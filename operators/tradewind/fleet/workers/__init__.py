"""Manual slices of a cluster, which its autoscaler does not make, and the boot of their hosts."""
