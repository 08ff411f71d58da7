"""What a step's config may hold, and how it is walked, bounded and written."""
