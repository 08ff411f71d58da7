"""Preparations of a training and its steps, compared with the tools that Tradewind replaces."""
