"""Commands that lead to clusters, their machines and logs."""
