"""Speedruns: cost and quality of trainings, and their leaderboard."""
