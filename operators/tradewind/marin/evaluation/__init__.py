"""Running files and judging what came of them."""
