"""Paths of a Levanter config: regions of its buckets, and missing token caches.

A training writes gigabytes every few minutes, so its buckets must be in the region of its machines. Only buckets that
are known to be elsewhere are refused. On a machine outside Google Cloud, and for a bucket of unknown location, there is
no check.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import PurePath
from typing import Any, Final

from tradewind.cloud_tpu.instance_metadata import zone
from tradewind.datasets.files import exists, join
from tradewind.plans.regions import bucket_of, is_inside
from tradewind.recipes.lm.cache_integrity import LEDGER, TOKENS, check_cache, read_ledger
from tradewind.recipes.lm.config import output_path_of
from tradewind.storage.bucket_regions import bucket_region

_REQUEST_TIMEOUT_S: Final = 5.0
_PARALLEL: Final = 8
"""Token caches that are checked at a time."""
_SOURCES: Final = ("train_urls", "validation_urls")


def check_regions(paths: Mapping[str, str | None], otherwise: str = "") -> None:
    """Raise ``ValueError`` with the first field whose bucket is in another region than this machine.

    ``otherwise`` is another remedy, as the end of the message.
    """
    buckets = {field: bucket for field, path in paths.items() if path and (bucket := bucket_of(path))}
    region = region_of_this_machine() if buckets else None
    for field, bucket in buckets.items() if region else ():
        location = _location(bucket)
        if location is not None and not is_inside(str(region), location):
            raise ValueError(
                f"{field}: bucket {bucket} is in {location} and the machines are in {region}: use a bucket of their "
                f"region, since every checkpoint would cross over{otherwise}."
            )


@cache
def region_of_this_machine() -> str | None:
    """Return the region, such as ``us-central2``; None outside Google Cloud."""
    here = zone(_REQUEST_TIMEOUT_S)
    return here.rpartition("-")[0] or None if here else None


def _location(bucket: str) -> str | None:
    """Return the bucket's location; None if unknown."""
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError

    try:
        return bucket_region(bucket, timeout=_REQUEST_TIMEOUT_S)
    except (GoogleAPIError, GoogleAuthError, OSError) as error:
        print(f"The region of bucket {bucket} is not checked, since its location is unknown: {error}")
        return None


@dataclasses.dataclass(frozen=True)
class NeededCache:
    """A token cache that a training needs."""

    field: str
    """Field of Levanter's config."""
    component: str
    split: str
    path: str
    can_be_built: bool
    """Whether its component has a source."""
    is_one_text: bool
    """Whether sequences are cut from all its tokens in a row."""
    token_field: str

    @property
    def config_field(self) -> str:
        return f"train_config.{self.field}.components[{self.component!r}]"


def check_places(config: Any) -> None:
    """Check the regions of buckets, the token caches, and that missing ones can be built.

    Raises:
        ValueError: With the field and the remedy.
    """
    missing = missing_caches(config.train_config)
    for each_cache in missing:
        if not (each_cache.can_be_built and builds_caches(config)):
            raise ValueError(_missing_message(each_cache))
    _check_caches(config, [cache for cache in _needed_caches(config.train_config) if cache not in missing])
    given = getattr(config, "allow_out_of_region", None) or ()
    allowed = tuple(field.removeprefix("train_config.") for field in given)
    built = {f"{cache.field}.components.{cache.component.partition('/')[0]}." for cache in missing}
    paths = {"output_path": output_path_of(config)} | {
        f"train_config.{field}": path
        for field, path in bucket_paths(config.train_config)
        if not field.startswith(allowed) and not _is_unused_source(field, built)
    }
    check_regions(paths, "; or name the field in allow_out_of_region")


def builds_caches(config: Any) -> bool:
    """Whether missing data is tokenized first."""
    given = getattr(config, "auto_build_caches", None)
    return bool(config.train_config.data.auto_build_caches if given is None else given)


def bucket_paths(value: Any, field: str = "") -> Iterator[tuple[str, str]]:
    """Yield the Cloud Storage paths of a config, with fields such as ``data.components.web.cache_dir``."""
    if isinstance(value, (str, PurePath)):
        text = str(value).replace("gs:/", "gs://", 1) if isinstance(value, PurePath) else value
        if text.startswith("gs://"):
            yield field, text
        return
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        inner: Mapping[Any, Any] = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
    elif isinstance(value, Mapping):
        inner = value
    elif isinstance(value, (list, tuple)):
        inner = dict(enumerate(value))
    else:
        return
    for name, each in inner.items():
        yield from bucket_paths(each, f"{field}.{name}" if field else str(name))


def missing_caches(given: Any) -> list[NeededCache]:
    """List the token caches that Levanter's config needs and that do not exist."""
    return [cache for cache in _needed_caches(given) if not exists(join(cache.path, LEDGER))]


def _check_caches(config: Any, caches: list[NeededCache]) -> None:
    """Check existing token caches; one that Levanter will continue to build may be unfinished."""
    given = config.train_config
    length = getattr(given, "train_seq_len", None) or given.model.max_seq_len

    def check(cache: NeededCache) -> None:
        is_trained = cache.split == "train"
        min_tokens = length if is_trained and cache.is_one_text else 0
        try:
            ledger = read_ledger(cache.path)
            if ledger is None or ledger.is_finished or not (cache.can_be_built and builds_caches(config)):
                check_cache(cache.path, min_tokens, cache.token_field, may_be_empty=not is_trained)
        except ValueError as error:
            raise ValueError(f"{cache.config_field}: {error}") from None

    with ThreadPoolExecutor(_PARALLEL) as pool:
        for _ in pool.map(check, caches):
            pass


def _needed_caches(given: Any) -> list[NeededCache]:
    cuts_validation = getattr(given, "validation_split_fraction", None) is not None  # from the training data
    needed = [
        cache for cache in _caches_of("data", given.data) if not (cuts_validation and cache.split == "validation")
    ]
    texts = getattr(given, "lm_validation_data", None)
    return needed if texts is None else [*needed, *_caches_of("lm_validation_data", texts)]


def cache_path(field: str, data: Any, name: str, component: Any, split: str) -> str:
    """Return the path of a token cache in Levanter; raises ``ValueError`` if the config has none."""
    root = component.cache_dir or (join(data.cache_dir, name) if data.cache_dir else None)
    if root is None:
        raise ValueError(f"train_config.{field}.components[{name!r}] has no cache_dir, and {field} has none either.")
    return str(root if component.flat_cache else join(root, split))


def has_weight(data: Any, name: str) -> bool:
    """Whether a component is trained on."""
    weights = data.train_weights
    stages = [weights] if isinstance(weights, Mapping) else [stage for _, stage in weights or ()]
    return weights is None or any(stage.get(name, 0) > 0 for stage in stages)


def _caches_of(field: str, data: Any) -> Iterator[NeededCache]:
    for name, component in cached_components(data):
        token_field = getattr(component.format, "token_data_key", TOKENS)
        is_one_text = type(component.format).__name__ == "TextLmDatasetFormat" and not component.pack
        for split, can_be_built in _needed(data, name, component).items():
            path = cache_path(field, data, name, component, split)
            yield NeededCache(field, name, split, path, can_be_built, is_one_text, token_field)


def cached_components(data: Any) -> Iterator[tuple[str, Any]]:
    for name, component in data.components.items():
        children = getattr(component, "children", None)
        if children is not None:
            yield from ((f"{name}/{child}", each) for child, each in children.items())
        elif not hasattr(component, "datasets"):  # a data set object has no cache
            yield name, component


def _needed(data: Any, name: str, component: Any) -> dict[str, bool]:
    """Map each split that is read to whether it can be built."""
    source = component.source
    needed = {}
    if has_weight(data, name.partition("/")[0]):
        needed["train"] = source is not None and bool(getattr(source, "train_urls", True))
    if source is None and not component.flat_cache:
        needed["validation"] = False
    elif getattr(source, "validation_urls", None):
        needed["validation"] = True
    return needed


def _missing_message(cache: NeededCache) -> str:
    problem = f"{cache.config_field}: there is no finished token cache for {cache.split} at {cache.path}"
    if cache.can_be_built:
        return f"{problem}: run the step that makes it, or set auto_build_caches=True."
    if cache.split == "validation" and exists(join(cache.path.rpartition("/")[0], "train", LEDGER)):
        return f"{problem}, and there is one for train: give its step validation_paths."
    return f"{problem}: run the step that makes it, since its component has no source."


def _is_unused_source(field: str, built: Collection[str]) -> bool:
    """Whether a field is the source of a token cache that exists already."""
    if not any(f".{source}" in field for source in _SOURCES):
        return False
    return not field.startswith(tuple(built))
