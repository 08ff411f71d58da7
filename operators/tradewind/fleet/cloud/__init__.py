"""What Google Cloud is asked about our clusters besides their slices."""
