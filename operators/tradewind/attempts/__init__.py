"""Lease protocol of one attempt: decide, claim, renew, wait, cancel, resolve the outcome."""
