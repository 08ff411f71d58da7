"""Drills: a training under fault injection, observed from outside."""
