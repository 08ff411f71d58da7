"""Ray clusters: one fleet file that describes them all, the files made from it, and operations on them."""
