"""Start, stop, restart, change and inspect clusters; decisions are separate from actions."""
