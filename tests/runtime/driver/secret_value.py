"""The one secret of these tests, and where it is kept."""

VALUE = "s3cr3t-value-of-the-test"
KEY = "projects/research/secrets/wandb"
