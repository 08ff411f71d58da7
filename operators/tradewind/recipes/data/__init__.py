"""Recipes for data: steps that make, filter and convert sets of documents."""

from __future__ import annotations

from tradewind.recipes.data.chats import chats_to_documents, documents_to_chats
from tradewind.recipes.data.consolidated import FilterConfig, consolidate
from tradewind.recipes.data.crawling.crawl import crawl
from tradewind.recipes.data.dolma import from_dolma, to_dolma
from tradewind.recipes.data.duplicates.exact import deduplicate_exact
from tradewind.recipes.data.duplicates.fuzzy import deduplicate_fuzzy
from tradewind.recipes.data.html.text import Markdownify, Resiliparse, Trafilatura, html_to_text
from tradewind.recipes.data.normalized import normalize
from tradewind.recipes.data.overlap.decontamination import decontaminate
from tradewind.recipes.data.overlap.evaluation_sets import Evaluation
from tradewind.recipes.data.overlap.train_test import train_test_overlap
from tradewind.recipes.data.quality.classifiers import train_classifier
from tradewind.recipes.data.quality.filter_rules import C4, FineWeb, GopherQuality, GopherRepetition, Length
from tradewind.recipes.data.quality.filters import filter_documents
from tradewind.recipes.data.quality.language import identify_language
from tradewind.recipes.data.quality.pii import MaskPii, mask_pii
from tradewind.recipes.data.quality.scoring import score_documents
from tradewind.recipes.data.quality.training_samples import ClassifierData

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
