"""Serve a model: a pool of engines on a Ray cluster behind one OpenAI-compatible address."""
