"""Costs of Tradewind, each compared with a peer or a bound measured in the same run."""
