"""Build our container images, push them to the registries of the fleet's regions, and set them in the fleet file."""
