"""What ``scripts.ui_stack`` shows: DAGs of small steps, run in this machine's processes, and clusters that answer."""
