"""What the plugin's pages ask of the API server: one router for each page, over the readers of the package."""
