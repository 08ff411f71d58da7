"""What to change in a file that is refused, where that can be said from the reason."""

from __future__ import annotations

import re
from typing import Final

from tradewind.marin.world.user_builtins import SECRET_NAME

_MOVE: Final = (
    "take this out, and let a step do it: a function that is given to ExecutorStep(fn=...) runs on the cluster"
)
_NAMED: Final = (
    "write a fixed text in place of what this line reads: the name of a step is the same in every run, so no value of "
    "the run can be in it"
)
_VERSIONED: Final = (
    "write the value down in place of what this line reads, or let the run give it: versioned(run_param('NAME')) of "
    "tradewind, and params={'NAME': ...} in the DAG file"
)
_SECRET: Final = (
    "take this out, and let the step that needs it name it: ExecutorStep(..., secrets={{'{name}': "
    "'projects/PROJECT/secrets/SECRET'}}); its function finds it in os.environ"
)
_WHERE_PARSED: Final = "where Airflow parses its DAG files"
_VARIABLE: Final = f"give a default, os.environ.get('{{name}}', ...), or set {{name}} {_WHERE_PARSED}"
_HUB: Final = (
    "write down here what the hub says of it: the number, the text or the list that the line needs, or the fields of "
    "the config"
)
_NOT_SET: Final = re.compile(r"^KeyError: '(?P<name>[A-Z][A-Z0-9_]+)'$")
_EDITS: Final = tuple(
    (re.compile(reason, re.DOTALL), edit)
    for reason, edit in (
        (r"^evaluated twice, a step is called ", _NAMED),
        (r"^evaluated twice, step .* has another version or path", _VERSIONED),
        (r"^evaluated twice, ", "write the value down in place of what this line reads"),
        (r"\.remote\(\) starts a Ray task|^ray\.\w+\(\) needs a Ray cluster", _MOVE),
        (
            r"^it (opens a network connection|opens a database|starts a process|starts a thread|deletes files|"
            r"signals a process|writes the file|moves or changes files|calls a library) ",
            _MOVE,
        ),
        (r"^it reads the secret (?!file)(?P<name>\S+) while", _SECRET),
        (r"^it reads the secret file ", _MOVE),
        (r"^it reads MARIN_PREFIX, which is not set", f"set it, or TRADEWIND_PREFIX, {_WHERE_PARSED}"),
        (
            r"^UnknownTokenizerError: ",
            f"write down here how large its vocabulary is, or set HF_HUB_CACHE, {_WHERE_PARSED}, to a Hugging Face "
            "cache that has it",
        ),
        (
            r"^FileNotFoundError: .*: '(?P<name>[^/'][^']*)'$",
            "write its path from the checkout's root, where files are run, and put it there if it is not: {name}",
        ),
        (r"^it ends itself with exit\(", "take this out, or let the file call executor_main before it"),
        (
            r"^it ends or changes (the|this) process with os\.|^it changes the limits|^it listens to all",
            "take this out",
        ),
        (r"^it asks for input\(\)", "write the answer down in place of the question"),
        (r" wants arguments from the command line", "give each field of that config a default"),
        (
            r"^it has (?P<count>\d+) steps, and at most ",
            "write most_steps={count} in the DAG file, or call executor_main for a part of the steps at a time",
        ),
        (
            r"(is asked of|^versioned\(\) is given|^OnlyOnClusterError).*"
            r"\b(transformers|huggingface_hub|datasets|load_tokenizer|from_hf_config|tokenizer)\b",
            _HUB,
        ),
        (
            r"(?:(?:is|\.\.\.\)) asked(?: of|,)|is matched|"
            r"^(?:hasattr|getattr|callable)\(|^whether |^versioned\(\) is given |holds )"
            r".*(?:known only on the cluster)",
            "write the value down in place of what only the cluster knows",
        ),
    )
)


def edit_for(reason: str) -> str | None:
    """The edit that would take ``reason`` away, or None: then no edit of the file is known that does."""
    if (variable := _NOT_SET.search(reason)) is not None:
        return (_SECRET if SECRET_NAME.search(variable["name"]) else _VARIABLE).format(**variable.groupdict())
    for pattern, edit in _EDITS:
        if (found := pattern.search(reason)) is not None:
            return edit.format(**found.groupdict()) if found.groupdict() else edit
    return None
