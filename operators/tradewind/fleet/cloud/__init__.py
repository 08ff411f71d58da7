"""Google Cloud's APIs for clusters, besides those of their slices."""
