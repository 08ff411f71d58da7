"""Access to a cluster from a laptop: SSH, tunnels, tokens and dashboards."""
