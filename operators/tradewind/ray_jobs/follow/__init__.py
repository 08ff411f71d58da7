"""Follow a job from its submission to its ending."""
