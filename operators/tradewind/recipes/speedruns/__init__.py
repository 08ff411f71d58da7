"""Trainings that compete: what each cost and how good it got, and the board of all of them."""
