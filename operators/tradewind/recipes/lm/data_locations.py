"""Where a config of Levanter's reads and writes: its buckets, and the token caches that are not there."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from pathlib import PurePath
from typing import Any, Final

from tradewind.cloud_tpu.instance_metadata import zone
from tradewind.datasets.files import exists, join
from tradewind.plans.regions import bucket_of, is_inside
from tradewind.recipes.lm.config import output_path_of
from tradewind.storage.bucket_regions import bucket_region

# A training writes gigabytes every few minutes: all its buckets must be in the region of its machines.
#
# Only what is known to be elsewhere is refused. The region is that of the Google Cloud machine that this runs on; on
# any other machine, and for a bucket whose location nobody tells, nothing is checked.

_ANSWER_S: Final = 5.0


def check_regions(paths: Mapping[str, str | None], otherwise: str = "") -> None:
    """Raise ``ValueError`` naming the first field whose path is in a bucket of another region than this machine's.

    ``otherwise`` is what else can be done, as the end of a sentence.
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
    """The region, such as ``us-central2``; None on a machine that is not Google Cloud's."""
    here = zone(_ANSWER_S)
    return here.rpartition("-")[0] or None if here else None


def _location(bucket: str) -> str | None:
    """Where the bucket is; None if nobody tells."""
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError

    try:
        return bucket_region(bucket, timeout=_ANSWER_S)
    except (GoogleAPIError, GoogleAuthError, OSError) as error:
        print(f"The region of bucket {bucket} is not checked, as it does not say where it is: {error}")
        return None


LEDGER: Final = "shard_ledger.json"
"""What a finished token cache has."""
_SOURCES: Final = ("train_urls", "validation_urls")


@dataclasses.dataclass(frozen=True)
class MissingCache:
    """A token cache that a training reads and that is not there."""

    field: str
    """Of Levanter's config."""
    component: str
    split: str
    path: str
    can_be_built: bool
    """Whether its component says what it is made of."""


def check_places(config: Any) -> None:
    """Refuse buckets in another region than the machines', and token caches that nobody will build.

    Raises:
        ValueError: With the field and what to do.
    """
    missing = missing_caches(config.train_config)
    for each_cache in missing:
        if not (each_cache.can_be_built and builds_caches(config)):
            raise ValueError(_not_there(each_cache))
    given = getattr(config, "allow_out_of_region", None) or ()
    allowed = tuple(field.removeprefix("train_config.") for field in given)
    built = {f"{cache.field}.components.{cache.component.partition('/')[0]}." for cache in missing}
    paths = {"output_path": output_path_of(config)} | {
        f"train_config.{field}": path
        for field, path in bucket_paths(config.train_config)
        if not field.startswith(allowed) and not _is_read_no_more(field, built)
    }
    check_regions(paths, "; or name the field in allow_out_of_region")


def builds_caches(config: Any) -> bool:
    """Whether data that is not tokenized yet is tokenized first."""
    given = getattr(config, "auto_build_caches", None)
    return bool(config.train_config.data.auto_build_caches if given is None else given)


def bucket_paths(value: Any, field: str = "") -> Iterator[tuple[str, str]]:
    """Every path on Cloud Storage in a config, with its field, such as ``data.components.web.cache_dir``."""
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


def missing_caches(given: Any) -> list[MissingCache]:
    """The token caches that Levanter's config needs and that are not there, as Levanter looks for them."""
    cuts_validation = getattr(given, "validation_split_fraction", None) is not None  # from what is trained on
    found = [
        cache for cache in _missing_of("data", given.data) if not (cuts_validation and cache.split == "validation")
    ]
    beside = getattr(given, "lm_validation_data", None)
    return found if beside is None else [*found, *_missing_of("lm_validation_data", beside)]


def cache_path(field: str, data: Any, name: str, component: Any, split: str) -> str:
    """Where Levanter looks for a token cache. Raises ``ValueError`` if the config does not say."""
    root = component.cache_dir or (join(data.cache_dir, name) if data.cache_dir else None)
    if root is None:
        raise ValueError(f"train_config.{field}.components[{name!r}] has no cache_dir, and {field} has none either.")
    return str(root if component.flat_cache else join(root, split))


def has_weight(data: Any, name: str) -> bool:
    """Whether a component is trained on at all."""
    weights = data.train_weights
    stages = [weights] if isinstance(weights, Mapping) else [stage for _, stage in weights or ()]
    return weights is None or any(stage.get(name, 0) > 0 for stage in stages)


def _missing_of(field: str, data: Any) -> Iterator[MissingCache]:
    for name, component in _cached_components(data):
        for split, can_be_built in _needed(data, name, component).items():
            path = cache_path(field, data, name, component, split)
            if not exists(join(path, LEDGER)):
                yield MissingCache(field, name, split, path, can_be_built)


def _cached_components(data: Any) -> Iterator[tuple[str, Any]]:
    for name, component in data.components.items():
        children = getattr(component, "children", None)
        if children is not None:
            yield from ((f"{name}/{child}", each) for child, each in children.items())
        elif not hasattr(component, "datasets"):  # what is given as a data set has no cache
            yield name, component


def _needed(data: Any, name: str, component: Any) -> dict[str, bool]:
    """Split that is read -> whether it can be built."""
    source = component.source
    needed = {}
    if has_weight(data, name.partition("/")[0]):
        needed["train"] = source is not None and bool(getattr(source, "train_urls", True))
    if source is None and not component.flat_cache:
        needed["validation"] = False
    elif getattr(source, "validation_urls", None):
        needed["validation"] = True
    return needed


def _not_there(cache: MissingCache) -> str:
    component = f"train_config.{cache.field}.components[{cache.component!r}]"
    there_is = f"{component}: there is no finished token cache for {cache.split} at {cache.path}"
    if cache.can_be_built:
        return f"{there_is}: run the step that makes it, or set auto_build_caches=True."
    if cache.split == "validation" and exists(join(cache.path.rpartition("/")[0], "train", LEDGER)):
        return f"{there_is}, and there is one for train: give its step validation_paths."
    return f"{there_is}: run the step that makes it, as its component does not say what it is made of."


def _is_read_no_more(field: str, built: Collection[str]) -> bool:
    """Whether a field says what a token cache was made of, which is there already."""
    if not any(f".{source}" in field for source in _SOURCES):
        return False
    return not field.startswith(tuple(built))
