"""Read AlpacaEval's files: instructions with the reference's answers, the judge's config, and what was judged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import yaml  # type: ignore[import-untyped]

from tradewind.datasets.files import join
from tradewind.records.parsing import (
    NUMBER,
    OBJECT,
    RAW_TEXT,
    TEXT,
    FieldType,
    RecordFormatError,
    is_relative,
    list_of,
    object_of,
    parse,
    parse_fields,
    parse_object,
    replace_surrogates,
)
from tradewind.storage.bounded_read import SMALL, Content, read_local
from tradewind.storage.files import read_contents
from tradewind.text import did_you_mean, truncated_repr

REFERENCE_FILE: Final = "reference_outputs.json"
GAMED_FILE: Final = "df_gamed.csv"
_JUDGE: Final = "judge"
_PREFERENCE: Final = FieldType(lambda given: NUMBER.fits(given) and 1 <= given <= 2, "a number from 1 to 2")


@dataclass(frozen=True)
class Instruction:
    """An instruction with the reference's answer."""

    position: int
    text: str
    reference: str


@dataclass(frozen=True)
class Judgement:
    """What the judge said of a document's pair of answers.

    Attributes:
        preference: From 1, the reference is better, to 2, the model is; None for no answer, or one without meaning.
        said: The judge's words, cut.
        error: Why there is no answer, if so.
    """

    preference: float | None
    said: str
    error: str | None


def read_task_files(task_path: str | None) -> dict[str, str]:
    """Return the files of a task: name → text.

    Raises:
        ValueError: There is no folder, or no file of the reference's answers in it.
    """
    if task_path is None:
        raise ValueError(f"task_path: give a folder with {REFERENCE_FILE}: a list of instruction and output.")
    found = read_contents([join(task_path, name) for name in (REFERENCE_FILE, GAMED_FILE)])
    contents = {path.rpartition("/")[2]: content for path, content in found.items()}
    if REFERENCE_FILE not in contents:
        raise ValueError(f"task_path={truncated_repr(task_path)} has no {REFERENCE_FILE}: give a folder that has it.")
    for name, content in contents.items():
        if content.flaw is not None:
            raise ValueError(f"{join(task_path, name)} cannot be used, because {content.flaw}.")
    return {name: content.text for name, content in contents.items()}


def read_instructions(text: str) -> list[Instruction]:
    """Parse the reference's answers.

    Raises:
        ValueError: They are of another form.
    """
    try:
        rows = parse(text)
        if not isinstance(rows, list) or not rows:
            raise RecordFormatError("it holds no list of objects")
        fields = {"instruction": RAW_TEXT, "output": RAW_TEXT}
        given = [parse_fields(row, fields, fields, f"entry {number}'s") for number, row in enumerate(rows)]
    except RecordFormatError as flaw:
        raise ValueError(f"task_path: {REFERENCE_FILE} cannot be used, because {flaw}.") from None
    return [
        Instruction(number, replace_surrogates(row["instruction"]), replace_surrogates(row["output"]))
        for number, row in enumerate(given)
    ]


def read_annotators(field: str, given: str, packages: Path) -> dict[str, str]:
    """Return the files of the judge's config: of a name that AlpacaEval brings, or of a folder.

    Raises:
        ValueError: There is none, or AlpacaEval would ask something else than the judge.
    """
    field = f"{field}={truncated_repr(given)}"
    bundled = packages / "alpaca_eval" / "evaluators_configs"
    known = sorted(path.parent.name for path in bundled.glob("*/configs.yaml"))
    folder = str(bundled / given) if given in known else given
    if "/" not in folder:
        raise ValueError(f"{field} is none of AlpacaEval's, and no folder; {did_you_mean(given, known)}")
    file = join(folder, "configs.yaml")
    config = _one_config(field, file, read_contents([file], SMALL).get(file))
    # Relative to the folder above the config's, as AlpacaEval reads it; a bundled one may be of another folder.
    prompt = str(config.get("prompt_template"))
    parent = folder.rstrip("/").rpartition("/")[0]
    template = join(parent, prompt)
    is_below = is_relative(prompt)
    content = read_contents([template], SMALL).get(template) if is_below else None
    if content is None or content.flaw is not None:
        raise ValueError(f"{field}: there is no prompt_template {truncated_repr(prompt)} below {parent}.")
    own = {**config, "prompt_template": f"{_JUDGE}/prompt.txt"}
    return {"configs.yaml": yaml.safe_dump({given.rstrip("/").rpartition("/")[2]: own}), "prompt.txt": content.text}


def _one_config(field: str, file: str, content: Content | None) -> Mapping[str, Any]:
    if content is None or content.flaw is not None:
        flaw = "it does not exist" if content is None else content.flaw
        raise ValueError(f"{field}: {file} cannot be used, because {flaw}.")
    try:
        given = yaml.safe_load(content.text)
    except (yaml.YAMLError, RecursionError):
        raise ValueError(f"{field}: {file} is no YAML.") from None
    configs = list(given.values()) if isinstance(given, dict) else []
    if len(configs) != 1 or not isinstance(configs[0], dict):
        raise ValueError(f"{field}: {file} has no config of one judge.")
    if configs[0].get("fn_completions", "openai_completions") != "openai_completions":
        raise ValueError(f"{field} is for another API: give one whose fn_completions is openai_completions.")
    if configs[0].get("batch_size", 1) != 1:
        raise ValueError(f"{field} asks for several pairs at once: give one whose batch_size is 1.")
    return configs[0]


def read_judged(file: Path) -> tuple[dict[str, Judgement], dict[str, float]]:
    """Return document → what the judge said, and AlpacaEval's own metrics.

    Raises:
        ValueError: The file is missing or invalid.
    """
    try:
        content = read_local(file)
        if content.flaw is not None:
            raise RecordFormatError(content.flaw)
        given = parse_fields(parse_object(content.text), _JUDGED_FILE, _JUDGED_FILE)
        rows = [parse_fields(row, _JUDGED, _JUDGED, "a document's") for row in given["judged"]]
    except OSError as error:
        raise ValueError(f"AlpacaEval's {file.name} cannot be read: {error.strerror or error}.") from None
    except RecordFormatError as flaw:
        raise ValueError(f"AlpacaEval's {file.name} cannot be used, because {flaw}.") from None
    judged = {row["document"]: Judgement(row["preference"], row["said"], row["error"]) for row in rows}
    return judged, given["metrics"]


_JUDGED_FILE: Final = {"judged": list_of(OBJECT), "metrics": object_of(NUMBER)}
_JUDGED: Final = {
    "document": TEXT,
    "preference": _PREFERENCE.or_null(),
    "said": TEXT,
    "error": TEXT.or_null(),
}
