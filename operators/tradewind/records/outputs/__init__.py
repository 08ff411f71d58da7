"""What lies in an output: what is complete, what is kept, what is left over, how it is taken away."""
