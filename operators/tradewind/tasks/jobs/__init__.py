"""Tasks that submit and follow a Ray job."""
