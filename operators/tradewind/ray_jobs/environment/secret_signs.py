"""What looks like a secret: by the name that it has, or by the form of its value.

A runtime_env, an entrypoint and metadata can be read by everybody who may ask the cluster for its jobs. These signs
are for refusing there, before anything is sent. They are meant to err on the side of refusing names, and to name a
value's form only when nothing else has that form. No function here returns any part of a value.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from tradewind.ray_jobs.environment.token_forms import token_form

# Where a name stands in any case, or as an option, it must say more than KEY or AUTH, which tables and samplers have.
_TELLING: Final = (
    r"SECRET(?!AR)|PASSW(?!ORDLESS)|PASSPHRASE|CREDENTIAL|PRIVATE_?KEY|API_?KEY|ACCESS_?KEY|MASTER_?KEY"
    r"|(?:^|_)(?:PWD|PASS|TOKEN)(?:_?\d+)?$|(?:^|_)(?:DB|PG|MYSQL|SMTP|FTP|LDAP)(?:PWD|PASS)$"
    r"|(?:AUTH|ACCESS|REFRESH|SESSION|BEARER|HF|GITHUB|GITLAB|GH|NPM|PYPI|SLACK|WANDB|RAY|API)TOKEN$"
)
_TELLING_NAME: Final = re.compile(_TELLING)
_SECRET_NAME: Final = re.compile(rf"{_TELLING}|(?:^|_)(?:KEY|PAT|PW|AUTH|BEARER|CREDS?|COOKIE)(?:_?\d+)?$")
# Names with such an end say where a secret is, or what it is called, and not what it is.
_ABOUT_A_SECRET: Final = re.compile(
    r"_(?:FILE|PATH|DIR|NAME|ID|REF|URL|URI|TTL|TIMEOUT|LENGTH|COUNT|PARALLELISM|SIZE|BUDGET|LIMIT|TYPE|ENV|VAR|VARIABLE"
    r"|PROVIDER|BACKEND|POLICY|HASHER|PROMPT|DATASET|STRENGTH|SHARING)$"
)
# Words of our trade that end like secrets: special tokens of a vocabulary, keys of a table or of a random generator,
# a pass over data; the shell's own folders; and our own variables, which hold references.
_HARMLESS_NAME: Final = re.compile(
    r"(?:^|_)(?:BOS|EOS|PAD|UNK|MASK|SEP|CLS|STOP|END|START|NEXT|FIRST|LAST|MAX|MIN|NUM|PER|IMAGE|CLASS|SPECIAL"
    r"|LANGUAGE|PROMPT|TRIGGER|IMPLICIT)_TOKEN$"
    r"|(?:^|_)(?:SORT|PRIMARY|PARTITION|CACHE|FOREIGN|JOIN|GROUP|PUBLIC|TEXT|PRNG|RNG|INDEX|ROW|SHARD|DEDUP"
    r"|DATASET|FEATURE|METRIC|OBJECT|ROUTING|COLUMN|BATCH)_KEY$"
    r"|(?:^|_)(?:FORWARD|BACKWARD|FIRST|SECOND|SINGLE|NUM|PER|EACH|ONE|TWO)_PASS$"
    r"|TOKENIZER|^PYTHONHASHSEED$|^(?:OLD)?PWD$|^TRADEWIND_"
)
_SWITCHES: Final = frozenset({"", "0", "1", "true", "false", "yes", "no", "on", "off", "none", "null"})
# A number, a file by its path or ending, a variable's name behind ``$``, a special token, stars, and our references.
_HARMLESS_VALUE: Final = re.compile(
    r"[+-]?\d{1,3}(?:\.\d{0,6})?(?:[eE][+-]?\d{1,3})?|(?:~|\.{1,2})?/[\w.-]+(?:/[\w.-]+)*\.[A-Za-z]\w{0,9}"
    r"|(?:~|\.{1,2})/[\w./-]+|/[\w.-]+(?:/[\w.-]+)+|[\w./-]+\.(?:json|pem|key|crt|p12|txt|ya?ml|toml|ini|env)"
    r"|\$\w+|\$\{\w+\}|<\|?[\w -]{1,40}\|?>|\[[A-Z_]{1,20}\]|\*+"
    r"|env:\w+|projects/[\w.:-]+/secrets/[\w-]+(?:/versions/\w+)?"
)
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_PLAIN_WORD: Final = re.compile(r"[A-Za-z](?:[a-z_.-]|[A-Z](?![a-z]?\d)|\d(?=[\d.]*(?:$|[_.-]))){0,30}")
_FORTY_HEX: Final = re.compile(r"[0-9a-f]{40}")
_COMMIT_NAME: Final = re.compile(r"(?:COMMIT|SHA|SHA1|HASH|REVISION)$")

_VALUE: Final = r"(\"[^\"]{0,400}\"?|'[^']{0,400}'?|[^\s;&|)'\"]{1,400})"
_ASSIGNMENT: Final = re.compile(
    rf"(?:^|(?<=[\s;&|('\",{{?+:]))([A-Za-z_][\w.-]{{0,80}})(?:['\"]\]\s?=\s?|\s=\s?|[=:])(?={_VALUE})"
)
_OPTION: Final = re.compile(rf"(?:^|(?<=[\s'\"]))--?([A-Za-z][\w.-]{{1,80}})(?:=|\s{{1,20}})(?={_VALUE})")
_COMMANDS: Final[Mapping[str, re.Pattern[str]]] = {
    option: re.compile(pattern)
    for option, pattern in {
        "-u": r"(?:\b(?:curl|wget)\b[^;&|\n]{0,2000}?\s(?:-u|--user|-U|--proxy-user)"
        r"|(?:^|[;&|])\s*(?:https?|xhs?)(?=\s)[^;&|\n]{0,2000}?\s(?:-a|--auth))"
        r"(?:=|\s*)[\"']?(?![$-])[^\s:\"'$]{1,200}:(?![\"']?\$)[^\s]",
        "a header": r"(?i:\bbearer\s{1,3}(?=[^\s\"']{0,80}\d))(?![\"']?[$<{*-])[^\s\"']"
        r"|(?i:\b(?:x-api-key|private-token|x-auth-token|api-key|cookie):\s{0,3})(?![\"']?[$<{*-])[^\s\"']"
        r"|(?i:\bauthorization:\s{0,3})(?!(?i:bearer|basic|token|negotiate)\b)(?![\"']?[$<{*-])[^\s\"']",
        "-p": r"\b(?:sshpass|(?:docker|podman|az|oc)\s+login|mongo(?:sh)?|snowsql|twine)\b[^;&|\n]{0,500}?"
        r"\s-p\s*(?![\"']?\$)[^\s]|\b(?:mysql(?:dump|admin)?|mariadb)\b[^;&|\n]{0,500}?\s-p(?![\"']?\$)[^\s]",
        "-P": r"\b(?:un)?zip\b[^;&|\n]{0,500}?\s-P\s*(?![\"']?\$)[^\s]",
        "password": r"\blogin\s+\S{1,80}\s+password\s+(?![\"']?\$)[^\s]",
        "-a": r"\bredis-cli\b[^;&|\n]{0,500}?\s-a\s+(?![\"']?\$)[^\s]",
        "login": r"\bwandb\s+login\s+(?:--?[\w-]+\s+){0,5}[0-9a-f]{40}",
        "configure set": r"\bconfigure\s+set\s+\S{0,80}(?:secret|token)\S{0,80}\s+(?![\"']?\$)[^\s]",
    }.items()
}


def secret_form(text: str) -> str | None:
    """What the text holds that has the form of a known kind of secret, such as ``"a GitHub token"``, or None."""
    return token_form(text)


def secret_variable(name: str, value: str) -> str | None:
    """Why an environment variable looks like a secret, as the end of ``"it looks like a secret: ..."``, or None."""
    form = secret_form(value)
    if form is not None:
        return f"its value has the form of {form}"
    plain = _plain_name(name)
    if plain.startswith("WANDB_") and _FORTY_HEX.fullmatch(value) and not _COMMIT_NAME.search(plain):
        return "its value has the form of a W&B key"
    return "so its name says" if _is_secret(_SECRET_NAME, plain) and not _is_harmless_value(value) else None


def secret_field(name: str, value: str, shortest: int) -> str | None:
    """Why a field of a config or an argument looks like a secret, as the end of the same sentence, or None.

    Its name must say more than a variable's, since configs are full of keys and special tokens, and its value must have
    ``shortest`` characters.
    """
    form = secret_form(value)
    if form is not None:
        return f"its value has the form of {form}"
    is_told = _is_secret(_TELLING_NAME, _plain_name(name)) and not _is_harmless_value(value)
    return "so its name says" if is_told and len(value) >= shortest and " " not in value else None


def secret_assignment(command: str) -> str | None:
    """What in a shell command gives a secret: the first such variable, field or option by its name, or None."""
    for name, value in _ASSIGNMENT.findall(command):
        if _gives_secret(name, value) and (name.isupper() or _is_secret(_TELLING_NAME, _plain_name(name))):
            return str(name)
    for name, value in _OPTION.findall(command):
        if not value.startswith("-") and _gives_secret(name, value) and _is_secret(_TELLING_NAME, _plain_name(name)):
            return f"--{name}"
    return next((option for option, pattern in _COMMANDS.items() if pattern.search(command)), None)


def shown_word(text: object, known: Iterable[str] | None = None) -> str:
    """``text`` in quotes if it is a name that is no secret, else what to say in its place.

    With ``known``, only what is nearly one of these is taken for a name.
    """
    is_name = isinstance(text, str) and _PLAIN_WORD.fullmatch(text) and secret_form(text) is None
    if is_name and (known is None or difflib.get_close_matches(str(text), list(known), n=1)):
        return repr(text)
    return "what is not shown here, for it may hold a secret"


def texts_in(value: Any, where: str) -> Iterator[tuple[str, str]]:
    """Every text inside nested mappings and lists, with where it stands; a key counts as well."""
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, Mapping):
        for number, (key, inner) in enumerate(value.items()):
            if isinstance(key, str) and secret_form(key) is not None:
                yield f"{where}, in key {number + 1},", key
                continue
            yield from texts_in(inner, f"{where}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for position, inner in enumerate(value):
            yield from texts_in(inner, f"{where}[{position}]")


def _gives_secret(name: str, value: str) -> bool:
    bare = value.strip("\"'")
    return not bare.startswith(("$", "{", "<")) and secret_variable(name, bare) is not None


def _plain_name(name: str) -> str:
    """As a variable of a shell would be called."""
    return _CAMEL.sub("_", name).upper().replace("-", "_").replace(".", "_")


def _is_secret(signs: re.Pattern[str], plain: str) -> bool:
    return bool(signs.search(plain) and not _ABOUT_A_SECRET.search(plain) and not _HARMLESS_NAME.search(plain))


def _is_harmless_value(value: str) -> bool:
    """A switch, a reference to a secret, a file's path, or another value that is none."""
    return value.strip().lower() in _SWITCHES or bool(_HARMLESS_VALUE.fullmatch(value))
