"""Generate texts for a set of documents by a model that a pool serves; shards resume, and their order stays.

Each shard sends its prompts through a gateway of its own, which waits while the pool is lost. The seed of a prompt
follows from its id, so a shard that is made again asks for the same.
"""

from __future__ import annotations

import functools
import hashlib
import http.client
import json
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, Final
from urllib.parse import urlsplit

from tradewind.datasets import Dataset, ShardInfo, counters, dataset_step
from tradewind.datasets.execution import Results
from tradewind.datasets.files import join, write_json
from tradewind.datasets.rows import RowError, current_rows
from tradewind.recipes.data.chats import messages_of
from tradewind.recipes.data.document_sets import COLUMNS, document_schema, part_pattern, path_input, read_set, set_files
from tradewind.recipes.model_spec import versioned_value
from tradewind.recipes.steps import naming_step
from tradewind.serving.config import ServingConfig
from tradewind.serving.gateway import FixedTarget, Gateway, PoolTarget, Target, error_message
from tradewind.serving.pool import PoolError
from tradewind.serving.weights import check_model
from tradewind.steps import ExecutorStep, this_output_path
from tradewind.steps.fields import PATH, SOME_TEXT, TEXTS, FieldRule, check_fields, instance, integer, number, one_of
from tradewind.steps.needs import needs
from tradewind.steps.paths import HUB_PREFIX
from tradewind.storage import open_file
from tradewind.text import format_duration, pluralize, quote_first_names, truncated_repr

ALGORITHM: Final = 1
"""Changes with the requests of the same prompts; part of the version."""
KINDS: Final = ("text", "question", "chat")
PROMPT: Final = "{prompt}"
_REFUSED: Final = frozenset({400, 413, 422, 500, 502, 504})
"""Statuses of requests to blame for it: the prompt is too long, or an engine fails over it again and again."""
_MAX_FIRST_REFUSED: Final = 20
"""Prompts of a shard that may be refused before the first answer."""
_Row = dict[str, Any]


@dataclass(frozen=True)
class GenerateConfig:
    """What ``generate`` reads, and how the model answers."""

    prompts: str
    """A set of documents."""
    model: str
    """Path of a model, or ``hub:ORG/NAME@COMMIT``."""
    output_path: str
    """Gets the set of generations, and ``stats.json``."""
    serving: ServingConfig
    """Where the model is served; outside the version, and without its model."""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """What of ``serving`` counts in the version."""
    prompt_field: str = "text"
    """Column with the prompt."""
    kind: str = "text"
    """What a prompt is: a ``text`` to continue, a user's ``question``, or a ``chat``."""
    template: str = PROMPT
    """Text around a prompt that is no chat."""
    temperature: float = 1.0
    top_p: float = 1.0
    max_tokens: int = 256
    stop: Sequence[str] = ()
    seed: int = 0
    max_rejected: float = 0.05
    """Share of prompts that the engine may refuse; outside the version."""
    max_concurrent: int = 16
    """Requests of one shard at a time; outside the version."""
    recovery_timeout_s: float = 1800.0
    """How long a shard waits for a lost pool; outside the version."""
    address: str | None = None
    """Base URL of a server that runs already, instead of a pool."""
    algorithm: int = ALGORITHM

    def __post_init__(self) -> None:
        check_fields(
            self,
            prompts=PATH,
            model=PATH,
            output_path=PATH,
            serving=_SERVING,
            prompt_field=SOME_TEXT,
            kind=one_of(KINDS),
            template=_TEMPLATE,
            temperature=number(minimum=0),
            top_p=_SHARE,
            max_tokens=integer(1),
            stop=TEXTS,
            seed=integer(0),
            max_rejected=number(minimum=0),
            max_concurrent=integer(1),
            recovery_timeout_s=number(above=0),
            address=_ADDRESS.or_none(),
        )


_SERVING: Final = instance("ServingConfig(...)", ServingConfig)
_TEMPLATE: Final = FieldRule(
    f"a text that holds {PROMPT} once", lambda value: isinstance(value, str) and value.count(PROMPT) == 1
)
_SHARE: Final = FieldRule(
    "a number above 0 and at most 1", lambda value: type(value) in (int, float) and 0 < value <= 1
)
_ADDRESS: Final = FieldRule(
    "a base URL such as http://10.0.0.2:8000/v1",
    lambda value: isinstance(value, str) and value.startswith(("http://", "https://")) and "@" not in value,
)


@naming_step
def generate(
    name: str,
    prompts: Any,
    model: Any,
    *,
    serving: ServingConfig | None = None,
    prompt_field: str = "text",
    kind: str = "text",
    template: str = PROMPT,
    temperature: float = 1.0,
    top_p: float = 1.0,
    max_tokens: int = 256,
    stop: Sequence[str] = (),
    seed: int = 0,
    max_rejected: float = 0.05,
    max_concurrent: int = 16,
    recovery_timeout_s: float = 1800.0,
    address: str | None = None,
    **options: Any,
) -> ExecutorStep:
    """Return a step that makes a set of documents of what a model answers to those of another one.

    A document has the id and the origin of its prompt, the answer as ``text``, and ``prompt``, ``finish_reason``,
    ``prompt_tokens`` and ``completion_tokens``. A prompt that the engine refuses, such as one that is too long, is
    left out and kept in ``.quarantine`` with the reason.

    Args:
        name: Name of the step.
        prompts: A set of documents: a step or a folder.
        model: A training, an export or a checkpoint: a step, a path, or ``hub:ORG/NAME@COMMIT``.
        serving: The pool, without a model. The default is one engine of Levanter's on one CPU. Only its
            engine with its options counts in the version.
        prompt_field: Column with the prompt.
        kind: ``text`` to continue a text, ``question`` for what a user says, ``chat`` for documents that
            ``chats_to_documents`` made.
        template: Text around a prompt that is no chat, with ``{prompt}``.
        temperature: Of sampling; 0 takes the most probable token.
        top_p: Share of probability to sample from.
        max_tokens: Tokens of an answer at most.
        stop: Texts before which an answer ends.
        seed: Of sampling; each prompt has one of its own, from this and its id.
        max_rejected: The step fails if the engine refuses more than this share of the prompts.
        max_concurrent: Requests of one shard at a time.
        recovery_timeout_s: How long a shard waits for a lost pool.
        address: Base URL of an OpenAI-compatible server without a key, instead of a pool.
        options: Of ``dataset_step``.

    Raises:
        ValueError: An argument does not take its value.
    """
    pool = ServingConfig() if serving is None else serving
    _SERVING.check("serving", pool)
    sampling: dict[str, Any] = {
        "prompt_field": prompt_field, "kind": kind, "template": template, "temperature": temperature, "top_p": top_p,
        "max_tokens": max_tokens, "stop": list(stop) if isinstance(stop, tuple) else stop, "seed": seed,
    }  # fmt: skip
    running: dict[str, Any] = {
        "max_rejected": max_rejected, "max_concurrent": max_concurrent, "recovery_timeout_s": recovery_timeout_s,
        "address": address,
    }  # fmt: skip
    is_hub = isinstance(model, str) and model.startswith(HUB_PREFIX)
    if is_hub:
        check_model(model)
    config = GenerateConfig(
        path_input("prompts", prompts),
        versioned_value(model) if is_hub else path_input("model", model),
        this_output_path(),
        pool,
        versioned_value({"engine": pool.engine, "options": dict(pool.engine_options), "command": list(pool.command)}),
        **{each: versioned_value(value) for each, value in sampling.items()},
        **running,
        algorithm=versioned_value(ALGORITHM),
    )
    about: dict[str, Any] = {"description": "Texts that a model generated.", "num_cpus": 0.1, "on_error": "quarantine"}
    return dataset_step(name, generations, config, finish=write_stats, **(about | options))


@needs("aiohttp", "pyarrow", extra="data")
def generations(config: GenerateConfig) -> Dataset[Any]:
    """Return the pipeline of ``generate``; the pool is ready by then."""
    files = set_files(config.prompts, "prompts")
    _check_column(files[0].path, config.prompt_field)
    if config.address is None:
        _pool_target(_pool_of(config).to_json()).wait_ready()
    columns = [*dict.fromkeys(("id", config.prompt_field, *COLUMNS[2:]))]
    answers = read_set(files, columns).map_shard(_Generating(config))
    return answers.write_parquet(part_pattern(config.output_path, ".parquet"), _schema())


def write_stats(config: GenerateConfig, results: Results) -> None:
    """Write how many documents and tokens there are.

    Raises:
        ValueError: Too many prompts were refused.
    """
    names = ("documents", "cut", "prompt_tokens", "completion_tokens")
    counts = {name: results.counters.get(name, 0) for name in names} | {"rejected": results.rejected}
    seconds = results.counters.get("milliseconds", 0) / 1000
    rate = f"{counts['completion_tokens'] / seconds:,.0f} tokens/s for each shard" if seconds else "at once"
    print(
        f"Generated {pluralize(counts['documents'], 'document')} with {counts['completion_tokens']:,} tokens in "
        f"{format_duration(seconds)} of all shards: {rate}.",
        flush=True,
    )
    prompts = counts["documents"] + results.rejected
    if results.rejected > config.max_rejected * prompts:
        raise ValueError(
            f"prompts: {results.rejected:,} of {prompts:,} were refused, more than max_rejected="
            f"{config.max_rejected:g} of them: see .quarantine for the reasons."
        )
    write_json(join(config.output_path, "stats.json"), {"counts": counts})


def _check_column(path: str, prompt_field: str) -> None:
    """Refuse prompts without their column before the pool is started."""
    from pyarrow import parquet

    with open_file(path, "rb") as file:
        names = parquet.read_schema(file).names
    if prompt_field not in names:
        has = f"{path} has no such column; it has {quote_first_names(names)}"
        raise ValueError(f"prompt_field={truncated_repr(prompt_field)}: {has}.")


def _pool_of(config: GenerateConfig) -> ServingConfig:
    return replace(config.serving, model=config.model)


@functools.lru_cache(maxsize=4)
def _pool_target(config: str) -> PoolTarget:
    """Return the same target for all shards of a process, since a pool keeps each user's token."""
    return PoolTarget(ServingConfig.from_json(config))


def _schema() -> Any:
    import pyarrow as pa

    schema = document_schema()
    for name, kind in (
        ("prompt", pa.string()),
        ("finish_reason", pa.string()),
        ("prompt_tokens", pa.int64()),
        ("completion_tokens", pa.int64()),
    ):
        schema = schema.append(pa.field(name, kind))
    return schema


@dataclass(frozen=True)
class _Asked:
    """A prompt, where it was read, and its answer."""

    number: int
    row: _Row
    answer: Future[_Row]


@dataclass(frozen=True)
class _Generating:
    """Function of ``map_shard`` that asks for several answers at a time, and yields them in order."""

    config: GenerateConfig

    def __call__(self, rows: Iterator[_Row], _: ShardInfo) -> Iterator[_Row]:
        began, config = time.monotonic(), self.config
        target: Target = FixedTarget(config.address) if config.address else _pool_target(_pool_of(config).to_json())
        gateway = Gateway(target, max_concurrent=config.max_concurrent, recovery_timeout_s=config.recovery_timeout_s)
        with gateway, ThreadPoolExecutor(config.max_concurrent) as threads:
            client = _Client(gateway, config)
            try:
                yield from self._answered(self._asked(rows, client, threads))
            finally:
                threads.shutdown(cancel_futures=True)
        counters.increment("milliseconds", int(1000 * (time.monotonic() - began)))

    def _asked(self, rows: Iterator[_Row], client: _Client, threads: ThreadPoolExecutor) -> Iterator[_Asked]:
        """Yield the prompts in order, while those that follow are asked."""
        state, waiting = current_rows.get(), deque[_Asked]()
        for row in rows:
            at = 0 if state is None else state.number
            waiting.append(_Asked(at, row, threads.submit(client.answer, row)))
            if len(waiting) > 2 * self.config.max_concurrent:
                yield waiting.popleft()
        yield from waiting

    def _answered(self, asked: Iterator[_Asked]) -> Iterator[_Row]:
        """Yield the answers, and leave out the prompts without one.

        Raises:
            RowError: The engine refuses one after the other, as if the model had no chat template.
        """
        state, refused = current_rows.get(), 0
        for each in asked:
            try:
                answer = each.answer.result()
            except RowError as error:
                refused += 1
                if state is None or (refused > _MAX_FIRST_REFUSED and self.config.max_rejected < 1):
                    raise
                state.number, state.row = each.number, each.row
                state.reject(error)
                continue
            refused = -sys.maxsize
            counters.increment("documents")
            counters.increment("cut", int(answer["finish_reason"] == "length"))
            for name in ("prompt_tokens", "completion_tokens"):
                counters.increment(name, answer[name] or 0)
            yield answer


@dataclass(frozen=True)
class _Client:
    """Requests of one shard to its gateway."""

    gateway: Gateway
    config: GenerateConfig

    def answer(self, row: _Row) -> _Row:
        """Return the document of a prompt.

        Raises:
            RowError: The prompt is no text, or the engine refuses it.
            PoolError: The pool is lost, or refuses all requests.
        """
        config = self.config
        prompt = row[config.prompt_field]
        if not isinstance(prompt, str) or not prompt:
            raise RowError(
                f"The column {config.prompt_field!r} of {row['id']} is {truncated_repr(prompt)}: give a text."
            )
        is_chat = config.kind != "text"
        asked = _conversation(config, prompt) if is_chat else {"prompt": config.template.replace(PROMPT, prompt)}
        given = self._post("chat/completions" if is_chat else "completions", asked | self._sampling(row["id"]))
        try:
            choice, usage = given["choices"][0], given.get("usage") or {}
            text = (choice["message"]["content"] if is_chat else choice["text"]) or ""
            text.encode()
        except UnicodeEncodeError:
            raise RowError(f"The answer to {row['id']} has half of a character: {truncated_repr(text)}.") from None
        except (KeyError, IndexError, TypeError, AttributeError):
            raise PoolError(f"The server's answer has no text: {truncated_repr(given)}.") from None
        return {
            "id": row["id"],
            "text": text,
            **{name: row[name] for name in COLUMNS[2:]},
            "prompt": prompt,
            "finish_reason": choice.get("finish_reason"),
            **{name: usage.get(name) for name in ("prompt_tokens", "completion_tokens")},
        }

    def _sampling(self, id: str) -> dict[str, Any]:
        config = self.config
        digest = hashlib.sha256(f"{config.seed}\0{id}".encode()).digest()
        given = {
            "model": _pool_of(config).name_in_api,
            "temperature": config.temperature,
            "top_p": config.top_p,
            "max_tokens": config.max_tokens,
            "seed": int.from_bytes(digest[:4], "big") >> 1,
        }
        return given | ({"stop": list(config.stop)} if config.stop else {})

    def _post(self, path: str, body: Mapping[str, Any]) -> Any:
        address = urlsplit(self.gateway.base_url)
        connection = http.client.HTTPConnection(address.hostname or "", address.port)
        try:
            connection.request("POST", f"{address.path}/{path}", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            status, text = response.status, response.read()
        finally:
            connection.close()
        if status == http.HTTPStatus.OK:
            return json.loads(text)
        why = f"HTTP {status}: {error_message(text)}"
        if status in _REFUSED:
            raise RowError(f"The engine refuses the prompt: {why}")
        raise PoolError(self.gateway.given_up or f"The server refuses all requests: {why}")


def _conversation(config: GenerateConfig, prompt: str) -> dict[str, Any]:
    if config.kind == "chat":
        return {"messages": messages_of(prompt)}
    return {"messages": [{"role": "user", "content": config.template.replace(PROMPT, prompt)}]}
