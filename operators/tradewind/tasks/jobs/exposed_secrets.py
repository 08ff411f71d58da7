"""Exposed secrets: refuse those that every user of the cluster could read, warn of those in records."""

from __future__ import annotations

import ast
import logging
import shlex
import textwrap
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tradewind.ray_jobs.errors import BadDependencyGroupError, ExposedSecretError
from tradewind.ray_jobs.request import check_env_vars, check_no_known_secret, check_no_secret
from tradewind.ray_jobs.secret_patterns import detect_secret, secret_assignment, secret_field, secret_literal
from tradewind.serialization.callables import Call
from tradewind.serialization.spec import StepSpec

logger = logging.getLogger(__name__)

_MIN_LENGTH_IN_CONFIG: Final = 8
"""Shorter values under a name like a secret's are mostly settings, and users ignore a warning that always appears."""


def uv_options(text: str) -> list[str]:
    """Return the words of ``[tradewind] uv_options``.

    Raises:
        BadDependencyGroupError: It is not a valid shell line.
        ExposedSecretError: It holds a password, which every user of the cluster could read.
    """
    try:
        words = shlex.split(text)
    except ValueError:
        raise BadDependencyGroupError(
            "[tradewind] uv_options (not shown, since it may hold a secret) has an unclosed quotation mark."
        ) from None
    if any(detect_secret(word) for word in words) or secret_assignment(text) is not None:
        raise ExposedSecretError(
            "[tradewind] uv_options holds a password or a token, which every user of the cluster can read. Remove it, "
            "and give the cluster's nodes a .netrc file or a keyring for that index."
        )
    return words


def check_spec(spec: StepSpec) -> StepSpec:
    """Check ``spec``; warn of each field of its config that looks like a secret.

    Raises:
        ExposedSecretError: Its environment or the options of its Ray task hold a secret.
    """
    subject = f"Step {spec.name!r}"
    check_no_secret(spec.environment, f"{subject}: its environment")
    task_env = (spec.ray_task or {}).get("runtime_env")
    if isinstance(task_env, Mapping):
        check_no_secret(task_env, f"{subject}: the runtime_env of its function")
        check_env_vars(task_env.get("env_vars") or {})
    warn_of_secrets(subject, spec.config)
    return spec


def warn_of_secrets(subject: str, config: Any) -> None:
    """Name each field of a JSON config that looks like a secret; the warning begins with ``subject``."""
    for path, reason in secrets_in_config(config):
        logger.warning(
            "%s: %s looks like a secret (%s), and every reader of the step's records can read its config. Remove it, "
            "and give the step secrets={NAME: 'projects/PROJECT/secrets/SECRET'} or 'env:VARIABLE'. Its function finds "
            "the value in os.environ[NAME].",
            subject,
            path,
            reason,
        )


def check_call(call: Call) -> Call:
    """Check ``call``: every user of the cluster can read it, in the job's environment or in its package.

    Raises:
        ExposedSecretError: It holds a secret.
    """
    for name, value in (*enumerate(call.args, 1), *call.kwargs.items()):
        for path, reason in _secrets_in(value, f"argument {name!r}", str(name), min_length=1):
            raise ExposedSecretError(
                f"The call's {path} looks like a secret ({reason}), and every user of the cluster can read it. Remove "
                "it, and give secrets={NAME: 'projects/PROJECT/secrets/SECRET'} or 'env:VARIABLE'. The function finds "
                "the value in os.environ[NAME]."
            )
    source = call.function.source
    if source is not None:
        check_no_known_secret(source.to_json(), f"The code of {call.function}")
        for first_line, text in source.pieces:
            for line, what in _secrets_in_code(text):
                raise ExposedSecretError(
                    f"{source.file}:{first_line + line - 1}: {what} looks like a secret, and every user of the cluster "
                    f"can read the code of {source.name!r}, which travels with the job. Remove it, and give "
                    "secrets={NAME: 'projects/PROJECT/secrets/SECRET'} or 'env:VARIABLE'. The function finds the value "
                    "in os.environ[NAME]."
                )
    return call


def _secrets_in_code(text: str) -> Iterator[tuple[int, str]]:
    """Return the lines of possible secrets that code holds as literals, each with its name."""
    try:
        tree = ast.parse(textwrap.dedent(text))
    except (SyntaxError, ValueError, RecursionError):
        return  # loading the code would fail too, and say so
    docstrings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        for name, value in _named_values(node):
            if name and (literal := _literal(value)) and secret_literal(name, literal):
                yield value.lineno, name
        command = None if node in docstrings else _command(node)
        if command and " " in command and (option := secret_assignment(command, in_code=True)) is not None:
            yield getattr(node, "lineno", 1), f"{option} in a text"


def _command(node: ast.AST) -> str | None:
    """Return the text of a node that could be a command: a literal, or a list of literals."""
    if isinstance(node, ast.List | ast.Tuple):
        return " ".join(filter(None, map(_literal, node.elts)))
    return _literal(node)


def _named_values(node: ast.AST) -> Iterator[tuple[str | None, ast.expr]]:
    """Return the values that a node of code binds to names, keys, attributes or parameters."""
    match node:
        case ast.Assign(targets=targets, value=value):
            yield from ((_name(target), value) for target in targets)
        case ast.AnnAssign(target=target, value=ast.expr() as value) | ast.NamedExpr(target=target, value=value):
            yield _name(target), value
        case ast.keyword(arg=name, value=value):
            yield name, value
        case ast.Call(args=[key, value]):  # such as os.environ.setdefault
            yield _literal(key), value
        case ast.arguments(posonlyargs=first, args=args, defaults=defaults, kwonlyargs=only, kw_defaults=of_only):
            with_default = [*first, *args][len(first) + len(args) - len(defaults) :]
            pairs = [*zip(with_default, defaults, strict=True), *zip(only, of_only, strict=True)]
            yield from ((argument.arg, value) for argument, value in pairs if value is not None)
        case ast.Dict(keys=keys, values=values):
            yield from ((_literal(key), value) for key, value in zip(keys, values, strict=True) if key is not None)


def _name(target: ast.expr) -> str | None:
    match target:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case ast.Subscript(slice=key):
            return _literal(key)
    return None


def _literal(node: ast.AST) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def secrets_in_config(config: Any) -> Iterator[tuple[str, str]]:
    """Return the paths of possible secrets in a step's encoded config, each with the reason."""
    yield from _secrets_in(config, "config", "", _MIN_LENGTH_IN_CONFIG)


def _secrets_in(value: Any, path: str, name: str, min_length: int) -> Iterator[tuple[str, str]]:
    if isinstance(value, str):
        if (reason := secret_field(name, value, min_length)) is not None:
            yield path, reason
    elif isinstance(value, dict):
        tag = next((key for key in value if key.startswith("$")), None)
        if tag is None or "fields" in value:
            fields = value if tag is None else value["fields"]
            for key, inner in fields.items():
                masked = key if detect_secret(key) is None else "(a key that is not shown)"
                yield from _secrets_in(inner, f"{path}.{masked}", key, min_length)
        elif tag == "$dict":
            for number, (key, inner) in enumerate(value[tag]):
                yield from _secrets_in(inner, f"{path}.[{number}]", key if isinstance(key, str) else "", min_length)
        else:
            yield from _secrets_in(value.get("items", value[tag]), path, name, min_length)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from _secrets_in(inner, f"{path}.[{number}]", name, min_length)
