"""What the code of an experiment file finds: modules, builtins, stand-ins, and the names that are ours."""
