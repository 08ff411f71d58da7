"""The variables that a cluster's processes have from Secret Manager, as files on each of its hosts."""
