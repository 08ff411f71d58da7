"""What a training needs before it begins, measured beside what one would use without us."""
