"""The Cloud TPU API, and the slices behind it."""
