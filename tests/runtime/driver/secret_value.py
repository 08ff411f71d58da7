"""The secret that these tests use: its value and its name in Secret Manager."""

VALUE = "s3cr3t-value-of-the-test"
KEY = "projects/research/secrets/wandb"
