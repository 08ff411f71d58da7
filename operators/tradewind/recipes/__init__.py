"""Step functions of a language-model pipeline: tokenizer, token cache, training, evaluation, report."""
