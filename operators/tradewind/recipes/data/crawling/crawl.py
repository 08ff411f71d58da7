"""A step that fetches a list of addresses into WARC files, and says what became of each address.

A crawl goes in rounds, each a pipeline. A round takes at most ``addresses_per_shard`` addresses of each host, as far as
``minutes_per_shard`` suffice: so a shard is minutes of work, all addresses of a host are in one shard, and the next
attempt fetches only the shards that are not whole. The others of a host wait for the next round, and so do redirects to
other hosts.

The one file of a shard has the pages and, as ``metadata`` records, the outcomes; ``outcomes/`` is read from there.
"""

from __future__ import annotations

import io
import ipaddress
import itertools
import json
import re
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

from tradewind._version import __version__
from tradewind.datasets import Dataset, ShardInfo, counters, dataset_step, flow_backend
from tradewind.datasets.execution import Results
from tradewind.datasets.files import join, read_json, write_json
from tradewind.datasets.rows import selected
from tradewind.datasets.token_inputs import ENDINGS, input_files
from tradewind.datasets.token_rows import MAX_LINE_BYTES, WHOLE, lines_of, open_unpacked
from tradewind.recipes.data.crawling.addresses import MAX_ADDRESS_CHARS, AddressError, parse_address
from tradewind.recipes.data.document_sets import dataset_of, part_pattern, path_input
from tradewind.recipes.model_spec import versioned_value
from tradewind.recipes.steps import naming_step
from tradewind.steps import ExecutorStep, this_output_path
from tradewind.steps.amounts import human_size, parse_size
from tradewind.steps.fields import PATH, SOME_TEXT, TEXTS, FieldRule, check_fields, integer, number
from tradewind.steps.needs import needs
from tradewind.storage import file_system_at
from tradewind.text import single_line, truncated_repr

if TYPE_CHECKING:
    from tradewind.recipes.data.crawling.client import FetchRules, Outcome

CONTENT_TYPES: Final = ("text/html", "application/xhtml+xml", "text/plain")
FETCHED: Final = "fetched"
MOVED: Final = "moved"
"""The address redirects to another host, and its outcome is in a later round."""
LATER: Final = "later"
"""The address waits for the next round; also the counter of those."""
_TEXT_ENDINGS: Final = (".txt", ".txt.gz", ".txt.zst")
_GIVEN_UP: Final = ("busy", "unreachable")
"""Reasons of a host of which no further address is requested."""
_STATE: Final = ".crawl"
_WARC: Final = "warc"
_OUTCOMES_PER_FILE: Final = 100_000
_COPIES: Final = 4
"""A page that is as large as it may be is in memory as received, twice, decoded, and as a record."""
_CPUS: Final = 0.25
"""A shard waits most of its time."""
_USER_AGENT: Final = re.compile(r"([A-Za-z_-]+)(?:/[!-~]*)? (?=[ -~]*(?:https?://|[!-~]+@)[!-~]+)[ -~]{1,400}")
_Row = dict[str, Any]


def _is_network(text: Any) -> bool:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        return False
    return isinstance(text, str)


def _is_port(value: Any) -> bool:
    return type(value) is int and 0 < value < 65536


_AGENT: Final = FieldRule(
    "the crawler's name, and a page or an e-mail address where its owner can be reached, such as "
    "'our-crawler/1.0 (+https://example.com/crawler)'",
    lambda value: isinstance(value, str) and _USER_AGENT.fullmatch(value) is not None,
)
_PORTS: Final = FieldRule(
    "a list of ports",
    lambda value: isinstance(value, (list, tuple)) and bool(value) and all(map(_is_port, value)),
)
_PAGE_BYTES: Final = FieldRule(
    f"a size of at most {MAX_LINE_BYTES:,} bytes, which readers take",
    lambda value: type(value) is int and 0 < value <= MAX_LINE_BYTES,
)
_NETWORKS: Final = FieldRule(
    "a list of networks, such as 10.1.0.0/16",
    lambda value: isinstance(value, (list, tuple)) and all(map(_is_network, value)),
)


@dataclass(frozen=True)
class CrawlConfig:
    """What ``crawl`` fetches, and how."""

    addresses: str
    """A file, folder or glob of JSON lines, Parquet or text."""
    output_path: str
    """Gets ``warc/``, ``outcomes/`` and ``stats.json``."""
    user_agent: str
    """Name and contact."""
    url_column: str = "url"
    """Column of the addresses; of no importance for text."""
    delay: float = 1.0
    """Seconds between two requests of a host, at least."""
    max_delay: float = 30.0
    """The largest ``Crawl-delay`` of a host whose pages are fetched."""
    timeout: float = 60.0
    """Seconds for a request as a whole."""
    max_page_bytes: int = 5_000_000
    """Size of a page, as it is received and decoded."""
    max_redirects: int = 5
    """Redirects of an address."""
    content_types: Sequence[str] = CONTENT_TYPES
    """Types of pages; empty for all."""
    allow_ports: Sequence[int] = (80, 443)
    """Ports of hosts."""
    allow_networks: Sequence[str] = ()
    """Networks that are requested although they are not public."""
    addresses_per_shard: int = 500
    """Size of a shard."""
    hosts_at_once: int = 32
    """Hosts of a shard that are requested at one time."""
    minutes_per_shard: float = 10.0
    """After so long a shard requests no further address."""

    def __post_init__(self) -> None:
        check_fields(
            self,
            addresses=PATH,
            output_path=PATH,
            user_agent=_AGENT,
            url_column=SOME_TEXT,
            delay=number(above=0, below=86_400),
            max_delay=number(minimum=0, below=86_400),
            timeout=number(above=0, below=86_400),
            max_page_bytes=_PAGE_BYTES,
            max_redirects=integer(0),
            content_types=TEXTS,
            allow_ports=_PORTS,
            allow_networks=_NETWORKS,
            addresses_per_shard=integer(1),
            hosts_at_once=integer(1),
            minutes_per_shard=number(above=0, below=10_000),
        )


_PACE: Final = ("delay", "hosts_at_once", "minutes_per_shard")
"""Outside the version and the keys of shards: a crawl may continue at another pace."""
_OUTSIDE_VERSION: Final = (*_PACE, "addresses_per_shard")


@naming_step
def crawl(
    name: str,
    addresses: Any,
    *,
    user_agent: str,
    max_page_bytes: str | int = "5MB",
    memory: str | int = "1GB",
    **options: Any,
) -> ExecutorStep:
    """Return a step that fetches addresses into WARC files.

    Args:
        name: Name of the step.
        addresses: A step, a file, a folder or a glob of JSON lines or Parquet with a column ``url``, or of text with
            an address in each line.
        user_agent: Name of the crawler and a contact, such as ``our-crawler/1.0 (+https://example.com/crawler)``. The
            name is what a ``robots.txt`` calls it.
        max_page_bytes: Larger pages are left out, by their size as received and decoded.
        memory: Of the task of a shard, which has a quarter of a CPU.
        options: Other fields of ``CrawlConfig``, and those of ``dataset_step``.

    Raises:
        ValueError: An argument does not take its value.
    """
    fields = set(CrawlConfig.__dataclass_fields__) - {"addresses", "output_path"}
    given = {field: options.pop(field) for field in sorted(fields & set(options))}
    given |= {"user_agent": user_agent, "max_page_bytes": parse_size(max_page_bytes, "max_page_bytes")}
    counted = {field: value if field in _OUTSIDE_VERSION else versioned_value(value) for field, value in given.items()}
    config = CrawlConfig(path_input("addresses", addresses), this_output_path(), **counted)
    hosts = given.get("hosts_at_once", CrawlConfig.hosts_at_once)
    needed = _COPIES * hosts * given["max_page_bytes"] if isinstance(hosts, int) else 0
    if needed > parse_size(memory, "memory"):
        raise ValueError(
            f"memory={memory!r}: hosts_at_once pages of max_page_bytes need {human_size(needed)}: lower one of both, "
            "or give more memory."
        )
    about: dict[str, Any] = {"description": "Pages of a list of addresses, in WARC files.", "num_cpus": _CPUS}
    return dataset_step(name, crawled, config, memory=memory, finish=write_stats, **(about | options))


@needs("aiohttp", "fastwarc", "pyarrow", extra="web")
def crawled(config: CrawlConfig) -> Dataset[str]:
    """Fetch all rounds, and return the pipeline of their outcomes."""
    write_json(join(config.output_path, _STATE, "pace.json"), {field: getattr(config, field) for field in _PACE})
    rows = _given_rows(config)
    hosts = rows.flat_map(_host_of).group_by(
        itemgetter("group"), combiner=_added, reducer=_AtMost(config.addresses_per_shard)
    )
    size = flow_backend().execute(hosts.reduce(sum))[0]
    files: list[str] = []
    for number_ in itertools.count():
        shards = max(-(-size // config.addresses_per_shard), 1)
        print(
            f"Round {number_ + 1}: {size:,} addresses, at most {config.addresses_per_shard:,} of each host.", flush=True
        )
        results = flow_backend().execute(_round(config, number_, rows, shards))
        print(f"Round {number_ + 1} is done: {_counted(results.counters)}.", flush=True)
        files += results
        size = results.counters.get(LATER, 0) + results.counters.get(MOVED, 0)
        if not size:
            break
        rows = Dataset.from_list([*_queue_files(config, number_, shards), *results]).load_jsonl().flat_map(_next_rows)
    count = -(-len(files) * config.addresses_per_shard // _OUTCOMES_PER_FILE)
    outcomes = Dataset.from_list(files).load_jsonl().flat_map(_last_outcome).reshard(count)
    return outcomes.write_jsonl(part_pattern(join(config.output_path, "outcomes"), ".jsonl.gz"))


def write_stats(config: CrawlConfig, results: Results) -> None:
    """Write how many addresses had which outcome.

    Raises:
        ValueError: There is no address, or none has a page. The next attempt requests all again: the network of this
            one may have been broken.
    """
    counts = dict(sorted(results.counters.items()))
    if not counts:
        raise ValueError(f"addresses: {config.addresses} holds no address.")
    if FETCHED not in counts:
        for folder in (_STATE, _WARC):
            fs, path = file_system_at(join(config.output_path, folder))
            fs.rm(path, recursive=True)
        raise ValueError(
            f"addresses: of {sum(counts.values()):,} none has a page: {_counted(counts)}; outcomes/ says more."
        )
    write_json(join(config.output_path, "stats.json"), {"addresses": sum(counts.values()), "outcomes": counts})


def _counted(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{reason} {count:,}" for reason, count in counts.items())


def _given_rows(config: CrawlConfig) -> Dataset[_Row]:
    files = input_files([config.addresses], "addresses", (*ENDINGS, *_TEXT_ENDINGS))
    are_text = {file.path.endswith(_TEXT_ENDINGS) for file in files}
    if len(are_text) > 1:
        raise ValueError(f"addresses: {config.addresses} holds text and other files: give a glob of one kind.")
    if are_text.pop():
        return dataset_of(files).flat_map(_lines).map(_address_row)
    return dataset_of(files).load_file().map(_Column(config.url_column)).map(_address_row)


def _round(config: CrawlConfig, number: int, rows: Dataset[_Row], shards: int) -> Dataset[str]:
    """Return the pipeline of a round: who is next, the pages, their outcomes."""
    state = _state_folder(config, number)
    grouped = rows.group_by(
        itemgetter("group"),
        sort_by=itemgetter("url", "redirects", "given"),
        reducer=_Numbering(config.addresses_per_shard),
        num_output_shards=shards,
    )
    queue = grouped.write_jsonl(part_pattern(join(state, "queue"), ".jsonl.gz")).load_jsonl()
    folder = f"{_WARC}/{number:04d}"
    decides = {field: getattr(config, field) for field in _DECIDES}
    pages = queue.filter(_is_now).map_shard(_Fetch(config.output_path, folder, decides))
    warcs = pages.write_binary(part_pattern(join(config.output_path, folder), ".warc.gz"), is_packed=True)
    outcomes = warcs.load_warc(["metadata"]).map(_outcome_row)
    return outcomes.write_jsonl(part_pattern(join(state, "outcomes"), ".jsonl.gz"))


_AS_THEY_ARE: Final = ("max_page_bytes", "max_redirects", "allow_ports", "allow_networks")
_DECIDES: Final = (*_AS_THEY_ARE, "user_agent", "timeout", "max_delay", "content_types")
"""What a shard depends on."""


def _state_folder(config: CrawlConfig, number: int) -> str:
    return join(config.output_path, _STATE, f"{number:04d}")


def _queue_files(config: CrawlConfig, number: int, shards: int) -> list[str]:
    pattern = part_pattern(join(_state_folder(config, number), "queue"), ".jsonl.gz")
    return [pattern.format(shard=shard, total=shards) for shard in range(shards)]


def _lines(path: str) -> Iterator[str]:
    """Yield the lines of a text that are not blank; of another encoding the bytes count."""
    with open_unpacked(path) as file:
        for _, line in lines_of(file, WHOLE):
            if line := line.removeprefix(b"\xef\xbb\xbf").strip():
                yield line.decode("utf-8", "surrogateescape")


@dataclass(frozen=True)
class _Column:
    name: str

    def __call__(self, row: Any) -> Any:
        return selected(row, (self.name,))[self.name]


def _address_row(given: Any) -> _Row:
    """Return the row of an address; one that cannot be requested has its outcome already."""
    text = given if isinstance(given, str) else truncated_repr(given)
    shown = text[:MAX_ADDRESS_CHARS].encode("utf-8", "backslashreplace").decode()
    try:
        address = parse_address(given)
    except AddressError as error:
        about = {"reason": error.reason, "problem": single_line(error)}
        return {"group": "", "url": "", "given": shown, "redirects": 0, **about}
    return {"group": address.group, "url": str(address), "given": shown, "redirects": 0}


def _host_of(row: _Row) -> list[_Row]:
    return [{"group": row["group"], "count": 1}] if row["group"] else []


def _added(group: str, rows: Iterator[_Row]) -> _Row:
    return {"group": group, "count": sum(row["count"] for row in rows)}


@dataclass(frozen=True)
class _AtMost:
    """Reducer that returns how many addresses of a host the next round requests."""

    most: int

    def __call__(self, _: str, rows: Iterator[_Row]) -> int:
        count: int = sum(row["count"] for row in rows)
        return min(count, self.most)


@dataclass(frozen=True)
class _Numbering:
    """Reducer that decides which addresses of a host are requested now: so many, in the order of their texts.

    None is of a host that was given up in the round before; its rows get that outcome.
    """

    most: int

    def __call__(self, group: str, rows: Iterator[_Row]) -> Iterator[_Row]:
        count, last, given_up = 0, None, {}
        for row in rows:
            if row.get("is_given_up"):  # without an address, so it comes first
                given_up = {name: row[name] for name in ("reason", "problem")}
                continue
            if given_up:
                yield {**row, **given_up, "now": True}
                continue
            count += row["url"] != last
            last = row["url"]
            yield {**row, "now": not group or count <= self.most}
        if group:
            counters.increment(LATER, min(max(count - self.most, 0), self.most))


def _is_now(row: _Row) -> bool:
    return bool(row["now"])


def _next_rows(row: _Row) -> list[_Row]:
    """Return the row of the next round that a row of a queue or an outcome leads to."""
    if row.get("reason") in (MOVED, LATER):
        address = parse_address(row["final_url"])
        about = {"given": row["url"], "redirects": row["redirects"]}
        return [{"group": address.group, "url": str(address), **about}]
    if row.get("reason") in _GIVEN_UP and row.get("final_url"):
        about = {name: row[name] for name in ("reason", "problem")}
        group = parse_address(row["final_url"]).group
        return [{"group": group, "url": "", "given": "", "redirects": 0, "is_given_up": True, **about}]
    if row.get("now", True):
        return []
    return [{name: row[name] for name in ("group", "url", "given", "redirects")}]


def _outcome_row(record: _Row) -> _Row:
    row: _Row = json.loads(record["payload"])
    counters.increment(row["reason"])
    return row


def _last_outcome(row: _Row) -> list[_Row]:
    if row["reason"] in (MOVED, LATER):
        return []
    counters.increment(row["reason"])
    return [row]


@dataclass(frozen=True)
class _Fetch:
    """Function of ``map_shard`` that makes the records of a WARC file, packed one by one."""

    output_path: str
    folder: str
    decides: Mapping[str, Any]

    def __call__(self, rows: Iterator[_Row], shard: ShardInfo) -> Iterator[bytes]:
        # Imported here, so that a crawl continues with another version of the client.
        from tradewind.recipes.data.crawling.client import fetch

        file = part_pattern(self.folder, ".warc.gz").format(shard=shard.shard_idx, total=shard.total_shards)
        yield _warc_info(self.decides["user_agent"])
        asked: list[_Row] = []
        for row in rows:
            if "reason" in row:
                outcome = _outcome(row["given"], row["reason"], row["problem"])
                yield _packed("metadata", json.dumps(outcome).encode(), "application/json", {})
            else:
                asked.append(row)
        for fetched in fetch(self._rules(), asked):
            yield from _records(fetched, file)

    def _rules(self) -> FetchRules:
        from tradewind.recipes.data.crawling.client import FetchRules

        pace = read_json(join(self.output_path, _STATE, "pace.json"))
        agent = _USER_AGENT.fullmatch(self.decides["user_agent"])
        assert agent is not None
        return FetchRules(
            user_agent=agent[0],
            product=agent[1],
            timeout_s=self.decides["timeout"],
            max_delay_s=self.decides["max_delay"],
            delay_s=pace["delay"],
            hosts_at_once=pace["hosts_at_once"],
            seconds=60 * pace["minutes_per_shard"],
            content_types=[kind.lower() for kind in self.decides["content_types"]],
            **{field: self.decides[field] for field in _AS_THEY_ARE},
        )


def _records(outcome: Outcome, file: str) -> Iterator[bytes]:
    """Yield request and response of a page, and the outcome of any address."""
    answer, about = outcome.answer, {"WARC-Target-URI": outcome.address}
    if answer is not None:
        about["WARC-Target-URI"] = str(answer.address)
        about["WARC-Date"] = answer.date.strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    row = _outcome(
        outcome.row["given"],
        outcome.reason,
        outcome.problem,
        final_url=outcome.address,
        redirects=outcome.redirects,
        status=None if answer is None else answer.status,
        content_type=None if answer is None else single_line(answer.headers.get("content-type", "")) or None,
        date=about.get("WARC-Date"),
    )
    if answer is not None and outcome.reason == FETCHED:
        row |= {"bytes": len(answer.body), "file": file}
        own = f"urn:uuid:{uuid.uuid4()}"
        yield _packed("response", answer.head + answer.body, "application/http; msgtype=response", about, own)
        about["WARC-Concurrent-To"] = f"<{own}>"
        yield _packed("request", answer.request, "application/http; msgtype=request", about)
    yield _packed("metadata", json.dumps(row).encode(), "application/json", about)


def _outcome(url: str, reason: str, problem: str, **known: Any) -> _Row:
    names = ("final_url", "redirects", "status", "content_type", "bytes", "date", "file")
    return {"url": url, "reason": reason, "problem": problem or None, **dict.fromkeys(names), **known}


def _warc_info(user_agent: str) -> bytes:
    fields = {
        "software": f"airflow-provider-tradewind/{__version__}",
        "format": "WARC File Format 1.1",
        "conformsTo": "http://iipc.github.io/warc-specifications/specifications/warc-format/warc-1.1/",
        "robots": "obey",
        "http-header-user-agent": user_agent,
    }
    body = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return _packed("warcinfo", body.encode(), "application/warc-fields", {})


def _packed(kind: str, body: bytes, content_type: str, headers: Mapping[str, str], own: str | None = None) -> bytes:
    """Return a record as a member of a gzip file; ``own`` is its id, else it gets one."""
    from fastwarc.stream_io import GzipWriter
    from fastwarc.warc import WarcRecord, WarcRecordType

    record = WarcRecord()
    record.init_headers(getattr(WarcRecordType, kind))
    if own is not None:
        record.record_id = f"<{own}>"
    for name, value in {**headers, "Content-Type": content_type}.items():
        record.headers[name] = value
    record.set_bytes_content(body)
    packed = io.BytesIO()
    with GzipWriter(packed, compression_level=6) as writer:
        record.write(writer, checksum_data=True)
    return packed.getvalue()
