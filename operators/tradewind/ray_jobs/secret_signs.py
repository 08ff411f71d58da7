"""What looks like a secret: by the name that it has, or by the form of its value.

A runtime_env, an entrypoint and metadata can be read by everybody who may ask the cluster for its jobs. These signs
are for refusing there, before anything is sent. They are meant to err on the side of refusing names, and to name a
value's form only when nothing else has that form. No function here returns any part of a value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

_SECRET_NAME: Final = re.compile(
    r"(?:^|_)(?:API_?KEY|ACCESS_?KEY|KEY|TOKEN|PAT|PASSPHRASE|AUTH|BEARER)$"
    r"|SECRET|PASSWORD|PASSWD|CREDENTIAL|PRIVATE_?KEY"
)
# Names with such an end say where a secret is, or what it is called, and not what it is.
_ABOUT_A_SECRET: Final = re.compile(r"_(?:FILE|PATH|DIR|NAME|ID|REF|URL|URI|TTL|TIMEOUT|LENGTH|COUNT|PARALLELISM)$")
# Words of our trade that end like secrets: special tokens of a vocabulary, keys of a table or of a random generator;
# and our own variables, which hold references.
_HARMLESS_NAME: Final = re.compile(
    r"(?:^|_)(?:BOS|EOS|PAD|UNK|MASK|SEP|CLS|STOP|END|START|NEXT|MAX|MIN|NUM|PER|IMAGE|IMPLICIT)_TOKEN$"
    r"|(?:^|_)(?:SORT|PRIMARY|PARTITION|CACHE|FOREIGN|JOIN|GROUP|PUBLIC|TEXT|PRNG|RNG|INDEX|ROW|SHARD|DEDUP)_KEY$"
    r"|TOKENIZER|^PYTHONHASHSEED$|^TRADEWIND_"
)
_SWITCHES: Final = frozenset({"", "0", "1", "true", "false", "yes", "no", "on", "off", "none", "null"})

_WORD_BEGINS: Final = r"(?<![A-Za-z0-9_])"
_FORMS: Final[Mapping[str, re.Pattern[str]]] = {
    what: re.compile(_WORD_BEGINS + pattern)
    for what, pattern in {
        "a Hugging Face token": r"hf_[A-Za-z0-9]{30,}",
        "a GitHub token": r"(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{22,})",
        "a GitLab token": r"glpat-[A-Za-z0-9_-]{20,}",
        "an API key of a model provider": (
            r"sk-(?=[A-Za-z0-9_-]*[0-9])(?=[A-Za-z0-9_-]*[A-Z])(?=[A-Za-z0-9_-]*[a-z])[A-Za-z0-9_-]{20,}"
        ),
        "an AWS access key": r"A(?:KIA|SIA)[A-Z0-9]{16}(?![A-Za-z0-9])",
        "a Google API key": r"AIza[A-Za-z0-9_-]{35}",
        "a Google access token": r"ya29\.[A-Za-z0-9_-]{20,}",
        "a Slack token": r"xox[a-z]-[A-Za-z0-9-]{10,}",
        "a signed web token": r"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
        "a W&B key": r"wandb_v\d_[A-Za-z0-9_-]{20,}",
        "a URL with a password": r"[A-Za-z][A-Za-z0-9+.-]*://[^/\s:@]*:(?!\$)[^/\s@]+@",
    }.items()
} | {"a private key": re.compile(r"-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY-----")}
_FORTY_HEX: Final = re.compile(r"[0-9a-f]{40}")
_COMMIT_NAME: Final = re.compile(r"(?:COMMIT|SHA|SHA1|HASH|REVISION)$")
_ASSIGNMENT: Final = re.compile(r"(?:^|[\s;&|('\"])([A-Z][A-Z0-9_]*)=(\S*)")


def secret_form(text: str) -> str | None:
    """What the text holds that has the form of a known kind of secret, such as ``"a GitHub token"``, or None."""
    return next((what for what, pattern in _FORMS.items() if pattern.search(text)), None)


def secret_variable(name: str, value: str) -> str | None:
    """Why an environment variable looks like a secret, as the end of ``"it looks like a secret: ..."``, or None."""
    form = secret_form(value)
    if form is not None:
        return f"its value has the form of {form}"
    upper = name.upper()
    if upper.startswith("WANDB_") and _FORTY_HEX.fullmatch(value) and not _COMMIT_NAME.search(upper):
        return "its value has the form of a W&B key"
    return "so its name says" if _is_secret_name(upper) and not _is_harmless_value(value) else None


def secret_assignment(command: str) -> str | None:
    """The first variable that a shell command sets to what looks like a secret, or None."""
    for name, value in _ASSIGNMENT.findall(command):
        if not value.lstrip("\"'").startswith("$") and secret_variable(name, value.strip("\"'")) is not None:
            return str(name)
    return None


def texts_in(value: Any, where: str) -> Iterator[tuple[str, str]]:
    """Every text inside nested mappings and lists, with where it stands."""
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            yield from texts_in(inner, f"{where}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for position, inner in enumerate(value):
            yield from texts_in(inner, f"{where}[{position}]")


def _is_secret_name(upper: str) -> bool:
    return bool(_SECRET_NAME.search(upper) and not _ABOUT_A_SECRET.search(upper) and not _HARMLESS_NAME.search(upper))


def _is_harmless_value(value: str) -> bool:
    """A switch, or the absolute path of a file, as ``GOOGLE_APPLICATION_CREDENTIALS`` holds."""
    return value.strip().lower() in _SWITCHES or bool(re.fullmatch(r"/[\w.-]+(?:/[\w.-]+)+", value))
