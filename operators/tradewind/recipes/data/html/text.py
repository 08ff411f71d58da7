"""A step that makes documents of web pages: the text of HTML from WARC files, archives and tables.

    pages = html_to_text("pages", "gs://bucket/crawl", extractor=Resiliparse(links=True))
    documents = normalize("documents", pages)

Each file becomes one file of JSON lines. Pages without text, and answers that are no page, are counted and left out.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from tradewind.datasets import Dataset, ShardInfo, counters, dataset_step
from tradewind.datasets.execution import Results
from tradewind.datasets.files import join, write_json
from tradewind.datasets.rows import RowError, current_rows
from tradewind.datasets.token_inputs import ENDINGS, InputFile, input_files
from tradewind.recipes.data.document_sets import dataset_of, part_pattern, path_input
from tradewind.recipes.data.html.extraction import ExtractionError, ExtractorProcess
from tradewind.recipes.data.html.pages import Page, decoded_html, page_of_member, page_of_record, page_of_row
from tradewind.recipes.model_spec import versioned_value
from tradewind.recipes.steps import naming_step
from tradewind.steps import ExecutorStep, this_output_path
from tradewind.steps.fields import FLAG, PATH, SOME_TEXT, TEXTS, FieldRule, check_fields, integer, one_of
from tradewind.steps.needs import needs
from tradewind.text import did_you_mean, truncated_repr

WARC_ENDINGS: Final = (".warc", ".warc.gz", ".warc.zst", ".warc.zstd")
_ZIP: Final = ".zip"
_COUNTS: Final = ("documents", "without_text", "other_status", "other_type")
_CONTROL: Final = {code: None for code in (*range(32), 127) if code not in (9, 10)}
"""Control characters but tabs and line breaks, which no text needs."""
_Row = dict[str, Any]


@dataclass(frozen=True)
class Extractor:
    """A library that extracts text, with its options; all count in the version."""

    name: ClassVar[str]
    algorithm: ClassVar[int] = 1
    """Changes with the texts of the same pages and options, also by another release of the library."""


@dataclass(frozen=True)
class Resiliparse(Extractor):
    """Plain text by resiliparse, which is by far the fastest.

    Attributes:
        preserve_formatting: Keep paragraphs, lists and indentation; else one line.
        main_content: Leave out menus, headers and footers, and lists that are not deep inside the page.
        links: Add the address to the text of a link.
        prepend_title: Begin with the title of the page, unless the text does.
        list_bullets: Begin the entries of lists with a bullet.
        alt_texts: Take the alternative texts of images.
        form_fields: Take the contents of forms.
        noscript: Take what pages show to browsers without scripts.
        comments: Keep the comments of readers in the main content.
        skip_elements: Names of elements to leave out, or selectors of CSS.
    """

    name: ClassVar[str] = "resiliparse"
    preserve_formatting: bool = True
    main_content: bool = True
    links: bool = False
    prepend_title: bool = True
    list_bullets: bool = True
    alt_texts: bool = False
    form_fields: bool = False
    noscript: bool = False
    comments: bool = False
    skip_elements: Sequence[str] = ()

    def __post_init__(self) -> None:
        flags = {field.name: FLAG for field in dataclasses.fields(self) if field.name != "skip_elements"}
        check_fields(self, **flags, skip_elements=TEXTS)


@dataclass(frozen=True)
class Trafilatura(Extractor):
    """The main text of articles by trafilatura, which leaves out most of what is around it.

    Attributes:
        include_comments: Keep the comments of readers.
        include_tables: Keep tables.
        include_links: Write the address beside the text of a link.
        include_images: Write the addresses of images.
        include_formatting: Mark headings and emphasis, as Markdown.
        favor_precision: Rather less text, and less that is around it.
        favor_recall: Rather more text.
        fast: Without the slower methods that it tries if its own finds little; of short pages it then finds nothing.
    """

    name: ClassVar[str] = "trafilatura"
    include_comments: bool = False
    include_tables: bool = True
    include_links: bool = False
    include_images: bool = False
    include_formatting: bool = False
    favor_precision: bool = False
    favor_recall: bool = False
    fast: bool = False

    def __post_init__(self) -> None:
        check_fields(self, **{field.name: FLAG for field in dataclasses.fields(self)})
        if self.favor_precision and self.favor_recall:
            raise ValueError("favor_precision=True: give only one of favor_precision and favor_recall.")


@dataclass(frozen=True)
class Markdownify(Extractor):
    """The whole page as Markdown by markdownify: headings, lists, tables, code.

    Attributes:
        include_images: Keep images, as their address and text.
        include_links: Keep the addresses of links.
        heading_style: ``ATX`` (``# Heading``), ``ATX_CLOSED`` or ``UNDERLINED``.
        keep_inline_images_in: Elements in whose text images stay images, such as ``td``; elsewhere in a line only
            their text stays.
    """

    name: ClassVar[str] = "markdownify"
    include_images: bool = True
    include_links: bool = True
    heading_style: str = "ATX"
    keep_inline_images_in: Sequence[str] = ()

    def __post_init__(self) -> None:
        styles = one_of(("ATX", "ATX_CLOSED", "UNDERLINED"))
        check_fields(self, include_images=FLAG, include_links=FLAG, heading_style=styles, keep_inline_images_in=TEXTS)


EXTRACTORS: Final[Mapping[str, type[Extractor]]] = {each.name: each for each in (Resiliparse, Trafilatura, Markdownify)}


@dataclass(frozen=True)
class HtmlToTextConfig:
    """What ``html_to_text`` reads, and how."""

    pages: Sequence[str]
    """Files, folders or globs, of one kind."""
    output_path: str
    """Gets a file for each input file, and ``stats.json``."""
    extractor: Mapping[str, Any]
    """Its name (``extractor``), ``algorithm`` and all options."""
    html_field: str = "html"
    """Column of the HTML, in JSON lines and Parquet."""
    url_field: str = "url"
    """Column of the address there."""
    id_field: str | None = None
    """Column of the id there; None for ``id``, or else the address."""
    members: str = "*.htm*"
    """Which members of archives are pages."""
    source: str | None = None
    """Name of the collection; None for the row's own ``source``."""
    max_page_bytes: int = 5_000_000
    """Larger pages are rows that fail, as are larger texts."""
    max_page_seconds: int = 30
    """CPU time for the text of a page."""

    def __post_init__(self) -> None:
        _PATHS.check("pages", self.pages)
        check_fields(
            self,
            output_path=PATH,
            html_field=SOME_TEXT,
            url_field=SOME_TEXT,
            id_field=SOME_TEXT.or_none(),
            members=SOME_TEXT,
            source=SOME_TEXT.or_none(),
            max_page_bytes=_PAGE_BYTES,
            max_page_seconds=integer(1),
        )


_PATHS = FieldRule(
    "a step, a path, or a list of these",
    lambda value: isinstance(value, (list, tuple)) and bool(value),
)
_PAGE_BYTES = FieldRule(
    "a whole number from 1 to 16,000,000",
    lambda value: isinstance(value, int) and not isinstance(value, bool) and 0 < value <= 16_000_000,
)


@naming_step
def html_to_text(
    name: str,
    pages: Any,
    *,
    extractor: Any = "resiliparse",
    html_field: str = "html",
    url_field: str = "url",
    id_field: str | None = None,
    members: str = "*.htm*",
    source: str | None = None,
    max_page_bytes: int = 5_000_000,
    max_page_seconds: int = 30,
    **options: Any,
) -> ExecutorStep:
    """Return a step that extracts the text of web pages, as documents that ``normalize`` reads.

    A row has ``id``, ``url``, ``text``, ``source`` and ``metadata``. Pages without text are counted and left out, as
    are answers of a crawl that are no page. Pages that fail are left out too, unless ``on_error`` says otherwise.

    Args:
        name: Name of the step.
        pages: A step, a path, a glob, or a list of these: WARC files, zip archives, or JSON lines and Parquet.
        extractor: ``resiliparse``, ``trafilatura`` or ``markdownify``; or one with options, as
            ``Resiliparse(links=True)`` or ``{"extractor": "resiliparse", "links": True}``.
        html_field: Column of the HTML, a text or bytes.
        url_field: Column of the address, if a row has it.
        id_field: Column of the id; the default is ``id`` if a row has it, or else the address.
        members: Names of the members of archives that are pages.
        source: Name of the collection; the default is the row's own ``source``, if it has one.
        max_page_bytes: Larger pages fail.
        max_page_seconds: Pages whose text takes more CPU time fail.
        options: Of ``dataset_step``; by default ``on_error="skip"`` and ``memory="2GB"``.

    Raises:
        ValueError: An argument does not take its value.
    """
    inputs = pages if isinstance(pages, (list, tuple)) else [pages]
    chosen = extractor_of(extractor)
    given = {
        "extractor": {"extractor": chosen.name, "algorithm": chosen.algorithm, **vars(chosen)},
        "html_field": html_field,
        "url_field": url_field,
        "id_field": id_field,
        "members": members,
        "source": source,
        "max_page_bytes": max_page_bytes,
        "max_page_seconds": max_page_seconds,
    }
    config = HtmlToTextConfig(
        [path_input("pages", each) for each in inputs],
        this_output_path(),
        **{field: versioned_value(value) for field, value in given.items()},
    )
    about = {"description": f"Texts of web pages by {chosen.name}.", "on_error": "skip", "memory": "2GB"}
    return dataset_step(name, texts_of_pages, config, finish=write_stats, **(about | options))


@needs("fastwarc", "markdownify", "resiliparse", "trafilatura", extra="web")
def texts_of_pages(config: HtmlToTextConfig) -> Dataset[Any]:
    """Return the pipeline of ``html_to_text``."""
    files = _files(config)
    kind, paths = _kind_of(files), dataset_of(files)
    if kind == "WARC files":
        rows = paths.load_warc(("response", "resource"))
    elif kind == "zip archives":
        rows = paths.load_zip_members(config.members)
    else:
        rows = paths.load_file()
    documents = rows.map_shard(_Extracting(config, kind))
    return documents.write_jsonl(part_pattern(config.output_path, ".jsonl.gz"))


def write_stats(config: HtmlToTextConfig, results: Results) -> None:
    """Write how many pages became documents, and why the others did not.

    Raises:
        ValueError: None did.
    """
    counts = {name: results.counters.get(name, 0) for name in _COUNTS} | {"rejected": results.rejected}
    if not counts["documents"]:
        told = ", ".join(f"{name} {count:,}" for name, count in counts.items() if count)
        raise ValueError(f"pages: no page has a text ({told or 'there is none'}).")
    write_json(join(config.output_path, "stats.json"), {"counts": counts, "extractor": dict(config.extractor)})


@dataclass(frozen=True)
class _Extracting:
    """Function of ``map_shard``: one process extracts the texts of a shard."""

    config: HtmlToTextConfig
    kind: str

    def __call__(self, rows: Iterator[_Row], _: ShardInfo) -> Iterator[_Row]:
        state = current_rows.get()
        assert state is not None
        given = dict(self.config.extractor)
        name = given.pop("extractor")
        given.pop("algorithm")
        with ExtractorProcess(name, given, self.config.max_page_seconds, self.config.max_page_bytes) as process:
            for row in rows:
                yield from state.whole(lambda row=row: self._documents(row, process))  # type: ignore[misc]

    def _documents(self, row: Any, process: ExtractorProcess) -> list[_Row]:
        page = self._page(row)
        if isinstance(page, str):
            counters.increment(page)
            return []
        html = self._html(page)
        try:
            text = process.text_of(html).translate(_CONTROL).strip() if html.strip() else ""
        except ExtractionError as error:
            raise RowError(f"The page {truncated_repr(page.url or page.id)} has no text: {error}.") from error
        if not text:
            counters.increment("without_text")
            return []
        counters.increment("documents")
        source = self.config.source or page.source
        about = {"id": page.id, "url": page.url, "text": text, "source": source, "metadata": dict(page.metadata)}
        return [{name: value for name, value in about.items() if value not in (None, {})}]

    def _page(self, row: Any) -> Page | str:
        if self.kind == "WARC files":
            return page_of_record(row)
        if self.kind == "zip archives":
            return page_of_member(row)
        return page_of_row(row, self.config.html_field, self.config.url_field, self.config.id_field)

    def _html(self, page: Page) -> bytes:
        limit = self.config.max_page_bytes
        if len(page.html) <= limit:
            html = decoded_html(page.html, page.content_type).encode("utf-8", "replace")
            if len(html) <= 2 * limit:  # other encodings are shorter
                return html
        raise RowError(f"The page {truncated_repr(page.url or page.id)} has more than {limit:,} bytes.")


def extractor_of(given: Any) -> Extractor:
    """Return an extractor, from itself, its name, or a mapping of its name (``extractor``) and options.

    Raises:
        ValueError: There is no such extractor, or it has no such option.
    """
    if isinstance(given, Extractor):
        return given
    options = {"extractor": given} if isinstance(given, str) else dict(given) if isinstance(given, Mapping) else {}
    name = options.pop("extractor", None)
    if not isinstance(name, str) or name not in EXTRACTORS:
        raise ValueError(f"extractor={truncated_repr(given)}: {did_you_mean(name, EXTRACTORS)}")
    fields = [field.name for field in dataclasses.fields(EXTRACTORS[name])]
    for option in options:
        if option not in fields:
            raise ValueError(f"Extractor {name} has no option {truncated_repr(option)}: {did_you_mean(option, fields)}")
    return EXTRACTORS[name](**options)


def _files(config: HtmlToTextConfig) -> list[InputFile]:
    """List the files; where there are WARC files, those beside them are about the crawl."""
    files: dict[str, InputFile] = {}
    for path in config.pages:
        found = input_files([str(path)], "pages", (*WARC_ENDINGS, _ZIP, *ENDINGS))
        for file in [file for file in found if file.path.endswith(WARC_ENDINGS)] or found:
            if file.path in files:
                raise ValueError(f"pages: {file.path} is listed twice.")
            files[file.path] = file
    return list(files.values())


def _kind_of(files: Sequence[InputFile]) -> str:
    """Return what the files are; a column of HTML is the same in JSON lines and Parquet.

    Raises:
        ValueError: They are of several kinds.
    """
    kinds: dict[str, str] = {}
    for file in files:
        kind = "tables"
        if file.path.endswith(WARC_ENDINGS):
            kind = "WARC files"
        elif file.path.endswith(_ZIP):
            kind = "zip archives"
        kinds.setdefault(kind, file.path)
    if len(kinds) > 1:
        (first, one), (second, other) = list(kinds.items())[:2]
        raise ValueError(f"pages: {one} and {other} are {first} and {second}: give a glob of one kind.")
    return next(iter(kinds))
