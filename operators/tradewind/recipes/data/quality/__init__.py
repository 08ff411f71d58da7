"""Measures of documents: rules, languages, classifiers."""
