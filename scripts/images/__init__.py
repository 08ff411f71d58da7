"""Our container images: built, tagged, pushed to the registries of the fleet's regions, and named in the fleet file."""
