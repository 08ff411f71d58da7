"""Inputs that mean harm, by the doors through which they come."""
