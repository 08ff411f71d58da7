"""Who may write an output, and until when."""
