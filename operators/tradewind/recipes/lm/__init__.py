"""Training of any config of Levanter's, whoever wrote it."""
