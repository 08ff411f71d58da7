"""Documents of the tasks in this folder, made in memory."""

from __future__ import annotations

import os
from typing import Any

import datasets

COLORS = {"sky": "blue", "grass": "green", "snow": "white", "coal": "black", "sun": "yellow", "rose": "red"}
CHOICES = [" blue", " green", " white"]


def choices(**_: Any) -> Any:
    """Return questions with three choices."""
    rows = [
        {"question": f"The color of {thing}, number {number}, is", "choices": CHOICES, "answer": number % 3}
        for number, thing in enumerate(COLORS)
    ]
    return {"test": datasets.Dataset.from_list(rows), "validation": datasets.Dataset.from_list(rows[:2])}


def questions(**_: Any) -> Any:
    """Return questions with a word as the answer."""
    rows = [{"question": f"What is the color of {thing}?", "answer": color} for thing, color in COLORS.items()]
    return {"test": datasets.Dataset.from_list(rows)}


def long(**_: Any) -> Any:
    """Return questions of which the second and the fourth are long."""
    rows = [
        {"question": "word " * (1 if number % 2 == 0 else 200), "choices": CHOICES, "answer": 0} for number in range(4)
    ]
    return {"test": datasets.Dataset.from_list(rows)}


def refused(**_: Any) -> Any:
    """Return questions of which the tiny engine refuses the first, and answers the second with half of a character."""
    marks = ("!refuse", "!half", "", "", "", "")
    rows = [{"question": f"Number {number}{mark}?", "answer": ""} for number, mark in enumerate(marks)]
    return {"test": datasets.Dataset.from_list(rows)}


def all_refused(**_: Any) -> Any:
    """Return many questions, all of which the tiny engine refuses."""
    return {"test": datasets.Dataset.from_list([{"question": f"!refuse {n}", "answer": ""} for n in range(100)])}


def die(*_: Any) -> Any:
    """End the process that measures, as a library that crashes does."""
    os._exit(9)
