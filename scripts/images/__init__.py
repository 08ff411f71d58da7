"""Build our container images, push them to the fleet's registries, and set them in the fleet file."""
