"""What is known of a host by its name alone: the files and the words that a cluster and a laptop share."""
