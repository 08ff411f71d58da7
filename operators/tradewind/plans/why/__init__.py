"""Why a step runs again, down to the change that caused it."""
