"""What the second of two evaluations finds otherwise than the first: the clock, the machine, the order of sets.

What differs between the two would differ from parse to parse, or between the machines that parse a DAG file.
"""
