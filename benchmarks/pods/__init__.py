"""What a lost slice costs, and what the pod runner costs, beside Ray Train's JaxTrainer and bare processes."""
