"""Recipes for data: steps that make, filter and convert sets of documents."""

from __future__ import annotations

from tradewind.recipes.data.chats import chats_to_documents, documents_to_chats
from tradewind.recipes.data.classifiers import train_classifier
from tradewind.recipes.data.consolidated import FilterConfig, consolidate
from tradewind.recipes.data.crawl import crawl
from tradewind.recipes.data.decontamination import decontaminate
from tradewind.recipes.data.dolma import from_dolma, to_dolma
from tradewind.recipes.data.duplicates import deduplicate_exact
from tradewind.recipes.data.evaluation_sets import Evaluation
from tradewind.recipes.data.filter_rules import C4, FineWeb, GopherQuality, GopherRepetition, Length
from tradewind.recipes.data.filters import filter_documents
from tradewind.recipes.data.fuzzy_duplicates import deduplicate_fuzzy
from tradewind.recipes.data.html_text import Markdownify, Resiliparse, Trafilatura, html_to_text
from tradewind.recipes.data.language import identify_language
from tradewind.recipes.data.normalized import normalize
from tradewind.recipes.data.overlap import train_test_overlap
from tradewind.recipes.data.pii import MaskPii, mask_pii
from tradewind.recipes.data.scoring import score_documents
from tradewind.recipes.data.training_samples import ClassifierData

__all__ = [
    "C4",
    "ClassifierData",
    "Evaluation",
    "FilterConfig",
    "FineWeb",
    "GopherQuality",
    "GopherRepetition",
    "Length",
    "Markdownify",
    "MaskPii",
    "Resiliparse",
    "Trafilatura",
    "chats_to_documents",
    "consolidate",
    "crawl",
    "decontaminate",
    "deduplicate_exact",
    "deduplicate_fuzzy",
    "documents_to_chats",
    "filter_documents",
    "from_dolma",
    "html_to_text",
    "identify_language",
    "mask_pii",
    "normalize",
    "score_documents",
    "to_dolma",
    "train_classifier",
    "train_test_overlap",
]
