"""What an experiment file's code can reach: modules, builtins, stubs, and Tradewind's own names."""
