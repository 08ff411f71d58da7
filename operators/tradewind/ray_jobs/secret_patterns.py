"""Detect secrets: by name, or by the form of the value.

Every client that may list a cluster's jobs can read a runtime_env, an entrypoint and metadata. These patterns refuse
secrets there before anything is sent. They prefer to refuse a name too many; they match a value's form only if nothing
else has that form. No function here returns any part of a value.

Provider tokens start with distinctive letters so that scanners can find them. The list follows the prefixes in the
rules of gitleaks and detect-secrets; the forms come from the providers. Neither tool is used itself. Gitleaks is a
separate program. Detect-secrets adds an HTTP client and process-wide settings, and lacks Hugging Face, W&B and Google.
Both report random-looking text, such as forty hexadecimal digits, which is mostly a commit, a checksum or a step's
version here. All patterns are bounded, because texts come from any source: none examines a part of a text more than a
few times.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from typing import Any, Final

_MAX_CACHED_CHARS: Final = 200
"""Longest text whose result is cached, in characters: configs of many steps repeat names and values."""
_TOKENS: Final[Mapping[str, str]] = {
    "a Hugging Face token": r"(?:hf_[A-Za-z0-9]{30,}|api_org_[A-Za-z0-9]{30,})",
    "a GitHub token": r"(?:gh[pousr]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{22,})",
    "a GitLab token": r"gl(?:pat|dt|rt|ft|ptt|cbt|soat|imt|agent|oas)-[A-Za-z0-9_-]{20,}",
    "an API key of a model provider": (
        r"(?:sk-(?=[A-Za-z0-9_-]{0,60}[0-9])(?=[A-Za-z0-9_-]{0,60}[A-Z])(?=[A-Za-z0-9_-]{0,60}[a-z])[A-Za-z0-9_-]{20,}"
        r"|gsk_[A-Za-z0-9]{40,}|xai-[A-Za-z0-9]{60,}|pplx-[A-Za-z0-9]{40,}|nvapi-[A-Za-z0-9_-]{40,}"
        r"|r8_[A-Za-z0-9]{30,}|lsv2_(?:pt|sk)_[A-Za-z0-9_]{30,})"
    ),
    "an AWS access key": r"A(?:KIA|SIA|BIA|CCA)[A-Z0-9]{16}(?![A-Za-z0-9])",
    "a Google API key": r"AIza[A-Za-z0-9_-]{35}",
    "a Google access token": r"(?:ya29\.[A-Za-z0-9_-]{20,}|1//0[A-Za-z0-9_-]{30,}|GOCSPX-[A-Za-z0-9_-]{20,})",
    "an Azure key": r"(?:AccountKey|SharedAccessKey)=[A-Za-z0-9+/]{40,}={0,2}",
    "a Slack token": r"(?:xox[a-z]-[A-Za-z0-9-]{10,}|xapp-\d-[A-Za-z0-9-]{10,})",
    "a webhook's address": (
        r"https://(?:hooks\.slack\.com/(?:services|workflows|triggers)|discord(?:app)?\.com/api/webhooks)/[\w/-]{20,}"
    ),
    "a Telegram token": r"\d{8,10}:AA[A-Za-z0-9_-]{32,}",
    "a Stripe key": r"(?:sk|rk)_(?:live|test|prod)_[A-Za-z0-9]{10,}",
    "a SendGrid key": r"SG\.[A-Za-z0-9_-]{16,40}\.[A-Za-z0-9_-]{16,}",
    "a Twilio key": r"SK[0-9a-f]{32}(?![A-Za-z0-9])",
    "an npm token": r"npm_[A-Za-z0-9]{36}",
    "a PyPI token": r"pypi-AgE[A-Za-z0-9_-]{50,}",
    "a Docker token": r"dckr_(?:pat|oat)_[A-Za-z0-9_-]{20,}",
    "a Databricks token": r"dapi[0-9a-f]{32}(?![A-Za-z0-9])",
    "a DigitalOcean token": r"do[opr]_v1_[0-9a-f]{64}",
    "a Vault token": r"hv[sbr]\.[A-Za-z0-9_-]{24,}",
    "a 1Password token": r"ops_eyJ[A-Za-z0-9+/_-]{100,}",
    "an age key": r"AGE-SECRET-KEY-1[A-Z0-9]{58}",
    "a Grafana token": r"gl(?:c_[A-Za-z0-9+/=]{32,}|sa_[A-Za-z0-9]{32}_[0-9a-f]{8})",
    "a Sentry token": r"sntry[su]_[A-Za-z0-9+/=_-]{40,}",
    "a Shopify token": r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}",
    "a Linear key": r"lin_api_[A-Za-z0-9]{32,}",
    "a Notion token": r"ntn_[A-Za-z0-9]{40,}",
    "a Postman key": r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}",
    "a Tailscale key": r"tskey-[a-z]{2,12}-[A-Za-z0-9-]{10,}",
    "a Pulumi token": r"pul-[0-9a-f]{40}",
    "an Artifactory key": r"AKCp[A-Za-z0-9]{60,}",
    "a Kaggle token": r"KGAT_[A-Za-z0-9]{20,}",
    "a W&B key": r"wandb_v\d_[A-Za-z0-9_-]{20,}",
    "a Neptune token": r"eyJhcGlfYWRkcmVzcyI6[A-Za-z0-9+/=_-]{40,}",
    "a signed web token": r"(?<!-)eyJ[A-Za-z0-9_-]{8,2000}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*",
    "a signed URL": (
        r"(?:X-Amz-Signature|X-Goog-Signature|Signature|sig)=(?=[A-Za-z0-9%+/_-]{0,60}\d)[A-Za-z0-9%+/_-]{30,}"
    ),
    "a URL with a password": (
        r"[A-Za-z][A-Za-z0-9+.-]{0,30}://(?:[^/\s:@[]{0,300}:(?![$<{]|\*+@|\d{1,5}/)(?![^\s@]{1,200}@sha256:)[^\s@]{1,2000}"
        r"|(?=[^/\s:@]{0,300}\d)[A-Za-z0-9_-]{20,300})@"
    ),
    "an authorization header": (
        r"[Aa]uthorization[\\'\"]{0,4}\s{0,3}[:=,]\s{0,3}[\\'\"]{0,4}(?:[Bb]earer|[Bb]asic|[Tt]oken)\s{1,3}(?![\\'\"]{0,2}[$<{*])"
        r"[^\s'\"\\]{1,2000}"
    ),
    "basic credentials": (
        r"[Bb]asic\s{1,3}(?=[A-Za-z0-9+/]{0,60}\d)(?=[A-Za-z0-9+/]{0,60}[A-Z])[A-Za-z0-9+/]{16,}={0,2}"
    ),
    "a bearer token": r"[Bb]earer\s{1,3}(?=[A-Za-z0-9._~+/-]{0,60}\d)[A-Za-z0-9._~+/-]{16,}",
}
_BLOCKS: Final[Mapping[str, str]] = {
    "a connection with a password": (
        r"(?i:\b(?:host|server|data source|user|user id|uid|username|dbname|database|port)=[^;\s,'\"()]{1,200}[;\s]\s?"
        r"(?:password|pwd)=)(?![$<{*])[^\s;,'\"()]{1,200}"
    ),
    "a private key": r"-----BEGIN (?:[A-Z0-9]{1,20} ){0,4}PRIVATE KEY(?: BLOCK)?-----|PuTTY-User-Key-File-\d",
    "a password in JSON": (
        r"\\{0,3}[\"'][\w.-]{0,40}?(?i:password|passwd|passphrase|secret|api_?key|access_?key|secret_?key|private_?key"
        r"|auth_?token|access_?token|refresh_?token)\d{0,2}\\{0,3}[\"']\s{0,3}:\s{0,3}\\{0,3}[\"']"
        r"(?!\\{0,3}[\"']|[$<{*]|(?i:true|false|none|null|yes|no|on|off|env:|projects/)|/)[^\"'\\]{1,2000}"
    ),
}


@cache
def _pattern() -> tuple[re.Pattern[str], tuple[str, ...]]:
    """Return all forms as one pattern, compiled when first needed, and the kind of each of its groups."""
    word_begins = r"(?<![A-Za-z0-9_])"
    groups = [f"({word_begins}{pattern})" for pattern in _TOKENS.values()] + [
        f"({block})" for block in _BLOCKS.values()
    ]
    return re.compile("|".join(groups)), (*_TOKENS, *_BLOCKS)


def redact_tokens(text: str) -> str:
    """Replace each part of ``text`` that has the form of a known kind of secret by ``***``."""
    return _pattern()[0].sub("***", text)


def detect_secret(text: str) -> str | None:
    """Return the kind of secret whose form is in the text, such as ``"a GitHub token"``, or None."""
    return _detect_cached(text) if len(text) <= _MAX_CACHED_CHARS else _detect(text)


def _detect(text: str) -> str | None:
    pattern, kinds = _pattern()
    found = pattern.search(text)
    return None if found is None or found.lastindex is None else kinds[found.lastindex - 1]


_detect_cached = lru_cache(maxsize=4096)(_detect)

# In any case, or as an option, a name must say more than KEY or AUTH, which tables and samplers have.
_CLEAR: Final = (
    r"SECRET(?!AR)|PASSW(?!ORDLESS)|PASSPHRASE|CREDENTIAL|PRIVATE_?KEY|API_?KEY|ACCESS_?KEY|MASTER_?KEY"
    r"|(?:^|_)(?:PWD|PASS|TOKEN)(?:_?\d+)?$|(?:^|_)(?:DB|PG|MYSQL|SMTP|FTP|LDAP)(?:PWD|PASS)$"
    r"|(?:AUTH|ACCESS|REFRESH|SESSION|BEARER|HF|GITHUB|GITLAB|GH|NPM|PYPI|SLACK|WANDB|RAY|API)TOKEN$"
)
_CLEAR_NAME: Final = re.compile(_CLEAR)
_SECRET_NAME: Final = re.compile(rf"{_CLEAR}|(?:^|_)(?:KEY|PAT|PW|AUTH|BEARER|CREDS?|COOKIE)(?:_?\d+)?$")
# Names with such a suffix describe where a secret is, or its name, not its value.
_ABOUT_A_SECRET: Final = re.compile(
    r"_(?:FILE|PATH|DIR|NAME|ID|REF|URL|URI|TTL|TIMEOUT|LENGTH|COUNT|PARALLELISM|SIZE|BUDGET|LIMIT|TYPE|ENV|VAR|VARIABLE"
    r"|PROVIDER|BACKEND|POLICY|HASHER|PROMPT|DATASET|STRENGTH|SHARING)$"
)
# Machine-learning terms that end like secrets: special tokens of a vocabulary, keys of a table or a random generator, a
# pass over data. Also the shell's own folders, and this package's variables, which hold references.
_HARMLESS_NAME: Final = re.compile(
    r"(?:^|_)(?:BOS|EOS|PAD|UNK|MASK|SEP|CLS|STOP|END|START|NEXT|FIRST|LAST|MAX|MIN|NUM|PER|IMAGE|CLASS|SPECIAL"
    r"|LANGUAGE|PROMPT|TRIGGER|IMPLICIT)_TOKEN$"
    r"|(?:^|_)(?:SORT|PRIMARY|PARTITION|CACHE|FOREIGN|JOIN|GROUP|PUBLIC|TEXT|PRNG|RNG|INDEX|ROW|SHARD|DEDUP"
    r"|DATASET|FEATURE|METRIC|OBJECT|ROUTING|COLUMN|BATCH)_KEY$"
    r"|(?:^|_)(?:FORWARD|BACKWARD|FIRST|SECOND|SINGLE|NUM|PER|EACH|ONE|TWO)_PASS$"
    r"|TOKENIZER|^PYTHONHASHSEED$|^(?:OLD)?PWD$|^TRADEWIND_"
)
_SWITCHES: Final = frozenset({"", "0", "1", "true", "false", "yes", "no", "on", "off", "none", "null"})
# A number, a file by its path or suffix, the version of a package with such a name, a variable's name after ``$``, a
# special token, stars, and references.
_HARMLESS_VALUE: Final = re.compile(
    r"[+-]?\d{1,3}(?:\.\d{0,6})?(?:[eE][+-]?\d{1,3})?|(?:~|\.{1,2})?/[\w.-]+(?:/[\w.-]+)*\.[A-Za-z]\w{0,9}"
    r"|(?:~|\.{1,2})/[\w./-]+|/[\w.-]+(?:/[\w.-]+)+|[\w./-]+\.(?:json|pem|key|crt|p12|txt|ya?ml|toml|ini|env)"
    r"|\d{1,4}(?:\.\d{1,6}){1,4}(?:\.\*)?(?:=\w{1,40})?"
    r"|\$\w+|\$\{\w+\}|<[|/]?[\w -]{1,40}\|?>|\[[A-Z_]{1,20}\]|\*+"
    r"|env:\w+|projects/[\w.:-]+/secrets/[\w-]+(?:/versions/\w+)?"
)
_CAMEL: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")

_PLAIN_WORD: Final = re.compile(r"[A-Za-z](?:[a-z_.-]|[A-Z](?![a-z]?\d)|\d(?=[\d.]*(?:$|[_.-]))){0,30}")
_FORTY_HEX: Final = re.compile(r"[0-9a-f]{40}")
_USER_IN_URL: Final = re.compile(r"[A-Za-z][\w+.-]{0,30}://[^/\s@]{1,2000}@")
# Letters and digits, but no constant's name, path or URL.
_VARIED: Final = re.compile(
    r"(?=[^\d\s]{0,400}\d)(?=[^A-Za-z\s]{0,400}[A-Za-z])(?![A-Z][A-Z0-9]{0,40}_[A-Z0-9_]{0,200}$|/|\w{1,20}://)[^\s<>{}$%]{8,400}"
)
_COMMIT_NAME: Final = re.compile(r"(?:COMMIT|SHA|SHA1|HASH|REVISION)$")

_VALUE: Final = r"(\"[^\"]{0,400}\"?|'[^']{0,400}'?|[^\s;&|)'\"]{1,400})"
_ASSIGNMENT: Final = re.compile(
    rf"(?:^|(?<=[\s;&|('\",{{?+:=]))([A-Za-z_][\w.-]{{0,80}})(?:['\"]\]\s?=\s?|\s=\s?|[=:])(?={_VALUE})"
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


def secret_variable(name: str, value: str) -> str | None:
    """Return the end of ``"it looks like a secret: ..."`` for an environment variable, or None."""
    form = detect_secret(value)
    return _secret_by_name(name, value) if form is None else f"its value has the form of {form}"


def _secret_by_name(name: str, value: str) -> str | None:
    plain = _plain_name(name)
    if plain.startswith("WANDB_") and _FORTY_HEX.fullmatch(value) and not _COMMIT_NAME.search(plain):
        return "its value has the form of a W&B key"
    if plain.endswith("DSN") and _USER_IN_URL.match(value):
        return "a DSN with a key"
    return "by its name" if _is_secret(_SECRET_NAME, plain) and not _is_harmless_value(value) else None


def secret_field(name: str, value: str, shortest: int) -> str | None:
    """Explain why a config field or argument looks like a secret, as ``secret_variable`` does, or None.

    Its name must say more than a variable's, since configs are full of keys and special tokens. Its value must have at
    least ``shortest`` characters.
    """
    form = detect_secret(value)
    if form is not None:
        return f"its value has the form of {form}"
    is_secret = _is_secret(_CLEAR_NAME, _plain_name(name)) and not _is_harmless_value(value)
    return "by its name" if is_secret and len(value) >= shortest and " " not in value else None


def secret_assignment(command: str, *, in_code: bool = False) -> str | None:
    """Return the first secret variable, field or option of a shell command by its name, or None.

    Callers look for forms of secrets by ``detect_secret`` in the command as a whole.
    A text in code may also be help or a template, so ``in_code`` its values must look like ``secret_literal``.
    """
    for name, value in _ASSIGNMENT.findall(command):
        if _gives_secret(name, value, in_code) and (name.isupper() or _is_secret(_CLEAR_NAME, _plain_name(name))):
            return str(name)
    # Before options: in "mysql -pMyPassword", the option's name is the secret.
    known = next((option for option, pattern in _COMMANDS.items() if pattern.search(command)), None)
    if known is not None:
        return known
    for name, value in _OPTION.findall(command):
        plain = _plain_name(name)
        if not value.startswith("-") and _gives_secret(name, value, in_code) and _is_secret(_CLEAR_NAME, plain):
            return f"--{name}" if name[0] not in "pP" or _CLEAR_NAME.match(plain) else "-p"
    return None


def secret_literal(name: str, value: str) -> bool:
    """Return whether code sets ``name`` to a secret rather than to a special token, another name or a placeholder."""
    return bool(_VARIED.fullmatch(value)) and secret_field(name, value, shortest=1) is not None


def redacted_name(text: object, known: Iterable[str] | None = None) -> str:
    """Return ``text`` in quotes if it is a name and no secret, else a description.

    With ``known``, only text close to one of these names counts as a name.
    """
    is_name = isinstance(text, str) and _PLAIN_WORD.fullmatch(text) and detect_secret(text) is None
    if is_name and (known is None or difflib.get_close_matches(str(text), list(known), n=1)):
        return repr(text)
    return "a text (not shown, as it may hold a secret)"


def texts_in(value: Any, where: str) -> Iterator[tuple[str, str]]:
    """Yield every text inside nested mappings and lists, keys included, with its location."""
    if isinstance(value, str):
        yield where, value
    elif isinstance(value, Mapping):
        for number, (key, inner) in enumerate(value.items()):
            if isinstance(key, str) and detect_secret(key) is not None:
                yield f"{where}, in key {number + 1},", key
                continue
            yield from texts_in(inner, f"{where}[{key!r}]")
    elif isinstance(value, (list, tuple)):
        for position, inner in enumerate(value):
            yield from texts_in(inner, f"{where}[{position}]")


def _gives_secret(name: str, value: str, in_code: bool) -> bool:
    bare = value.strip("\"'")
    if in_code and not _VARIED.fullmatch(bare):
        return False
    return not bare.startswith(("$", "{", "<", "=")) and _secret_by_name(name, bare) is not None


def _plain_name(name: str) -> str:
    """Return ``name`` as a shell variable would spell it."""
    return _CAMEL.sub("_", name).upper().replace("-", "_").replace(".", "_")


def _is_secret(pattern: re.Pattern[str], plain: str) -> bool:
    return bool(pattern.search(plain) and not _ABOUT_A_SECRET.search(plain) and not _HARMLESS_NAME.search(plain))


def _is_harmless_value(value: str) -> bool:
    """Return whether ``value`` is harmless: a switch, a reference to a secret, a file's path, and so on."""
    return value.strip().lower() in _SWITCHES or bool(_HARMLESS_VALUE.fullmatch(value))
