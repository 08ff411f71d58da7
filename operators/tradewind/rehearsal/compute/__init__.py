"""Google's Compute Engine on this machine: the virtual machines and disks that the heads of clusters need."""
