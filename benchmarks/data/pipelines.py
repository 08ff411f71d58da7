"""What the benchmark of pipelines measures, each in a process of its own."""

from __future__ import annotations

import contextlib
import io
import json
import logging
import multiprocessing
import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage

CORES: Final = 2
_RAY: Final = {"RAY_AUTH_MODE": "disabled", "RAY_worker_niceness": "0"}
_ENCODE: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def _write_rows(folder: str, file: int, rows: int, words: int) -> None:
    from isal import igzip

    chance = random.Random(file)
    vocabulary = [f"word{number}" for number in range(20_000)]
    with igzip.open(f"{folder}/{file:03}.jsonl.gz", "wt", compresslevel=1) as packed:
        for row in range(rows):
            text = " ".join(chance.choices(vocabulary, k=words))
            packed.write(
                _ENCODE({"id": f"{chance.randrange(rows)}", "row": row, "text": text, "score": chance.random()})
            )
            packed.write("\n")


def _prepare(folder: str, files: int, rows: int, words: int) -> int:
    from isal import igzip

    os.makedirs(f"{folder}/in")
    with multiprocessing.get_context("spawn").Pool(CORES) as pool:
        pool.starmap(_write_rows, [(f"{folder}/in", file, rows, words) for file in range(files)])
    with igzip.open(f"{folder}/in/000.jsonl.gz") as packed:
        return len(packed.read()) * files


def _is_good(row: dict[str, Any]) -> bool:
    return bool(row["score"] > 0.3)


def _shaped(row: dict[str, Any]) -> dict[str, Any]:
    return {"id": row["id"], "text": row["text"].upper(), "length": len(row["text"])}


def _loop(path: str, out: str) -> None:
    from isal import igzip

    with igzip.open(path) as lines, igzip.open(f"{out}/{Path(path).name}", "wb", compresslevel=1) as packed:
        for line in lines:
            row = json.loads(line)
            if _is_good(row):
                packed.write((_ENCODE(_shaped(row)) + "\n").encode())


@contextlib.contextmanager
def on_ray(folder: str) -> Iterator[None]:
    """Start a Ray of ``CORES`` CPUs with warm workers."""
    import ray

    os.environ |= {**_RAY, "HOME": folder}
    ray.init(num_cpus=CORES, log_to_driver=False, include_dashboard=False)
    ray.get([ray.remote(_is_good).remote({"score": 1}) for _ in range(CORES)])  # the workers have started
    try:
        yield
    finally:
        ray.shutdown()


def _timed(work: Callable[[], Any]) -> float:
    begun = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()):
        work()
    return time.perf_counter() - begun


def measure_map(
    files: int, rows: int, rounds: int, datatrove: str | None = None
) -> tuple[int, list[tuple[float, float]], dict[str, float]]:
    """Return the bytes of JSON, seconds of the loop and of the pipeline for each round, and those of peers.

    ``datatrove`` is the Python of an environment that has it.
    """
    from tradewind.datasets import Dataset, create_backend

    with tempfile.TemporaryDirectory() as folder, on_ray(folder):
        size = _prepare(folder, files, rows, 250)
        paths = [f"{folder}/in/{file:03}.jsonl.gz" for file in range(files)]
        pages = Dataset.from_files(f"{folder}/in/*.gz").load_jsonl().filter(_is_good).map(_shaped)
        written = pages.write_jsonl(f"{folder}/ours/{{shard}}.jsonl.gz")
        backend = create_backend("ray", max_parallelism=CORES, memory="200MB")

        def loop() -> None:
            os.makedirs(f"{folder}/loop", exist_ok=True)
            with multiprocessing.get_context("spawn").Pool(CORES) as pool:
                pool.map(partial(_loop, out=f"{folder}/loop"), paths, chunksize=1)

        def ours() -> None:
            shutil.rmtree(f"{folder}/ours", ignore_errors=True)
            backend.execute(written)

        def ray_data() -> None:
            import ray

            ray.data.DataContext.get_current().enable_progress_bars = False
            read = ray.data.read_json(f"{folder}/in", override_num_blocks=files)
            read.filter(_is_good).map(_shaped).write_json(f"{folder}/ray_data")

        def peer() -> None:
            command = [str(datatrove), str(Path(__file__).with_name("datatrove_map.py"))]
            told = subprocess.run([*command, f"{folder}/in", f"{folder}/peer", str(CORES)], capture_output=True)
            if told.returncode:
                raise RuntimeError(f"{datatrove}: {told.stderr.decode(errors='replace')[-2_000:]}")

        def zephyr() -> None:
            from zephyr import Dataset as Theirs

            pages = Theirs.from_files(f"{folder}/in/*.gz").load_jsonl().filter(_is_good).map(_shaped)
            _execute_by_zephyr(folder, pages.write_jsonl(f"{folder}/zephyr/{{shard}}.jsonl.zst"))  # its gzip is level 9

        ours()  # the workers have imported what they need
        measured = [(_timed(loop), _timed(ours)) for _ in range(rounds)]
        peers = {"Ray Data": _timed(ray_data), "Zephyr": _timed(zephyr)}
        return size, measured, peers | ({"datatrove": _timed(peer)} if datatrove else {})


def _execute_by_zephyr(folder: str, dataset: Any) -> None:
    """Execute a data set of the Zephyr that Levanter brings, on this machine: in threads."""
    from fray import LocalClient
    from zephyr import ZephyrContext

    logging.disable(logging.WARNING)
    ZephyrContext(LocalClient(), CORES, chunk_storage_prefix=f"{folder}/between").execute(dataset)


def measure_deduplicate(files: int, rows: int, engine: str) -> tuple[int, float]:
    """Return the number of rows, and the seconds for one row of each key: by tradewind, Zephyr or Ray Data."""
    from tradewind.datasets import Dataset, create_backend

    with tempfile.TemporaryDirectory() as folder, on_ray(folder):
        _prepare(folder, files, rows, 5)

        def ours() -> None:
            unique = Dataset.from_files(f"{folder}/in/*.gz").load_jsonl().deduplicate(lambda row: row["id"])
            create_backend("ray", max_parallelism=CORES, memory="400MB").execute(
                unique.write_jsonl(f"{folder}/out/{{shard}}.jsonl.gz")
            )

        def theirs() -> None:
            import ray

            ray.data.DataContext.get_current().enable_progress_bars = False
            groups = ray.data.read_json(f"{folder}/in", override_num_blocks=files).groupby("id")
            groups.map_groups(lambda group: group.head(1), batch_format="pandas").write_json(f"{folder}/out")

        def zephyr() -> None:
            from zephyr import Dataset as Theirs

            unique = Theirs.from_files(f"{folder}/in/*.gz").load_jsonl().deduplicate(lambda row: row["id"])
            _execute_by_zephyr(folder, unique.write_jsonl(f"{folder}/out/{{shard}}.jsonl.zst"))

        return files * rows, _timed({"tradewind": ours, "Zephyr": zephyr, "Ray Data": theirs}[engine])


def _process_slowly(folder: str, shards: int) -> None:
    from tradewind.datasets import Dataset, ShardInfo, create_backend

    def noted(rows: Iterator[int], info: ShardInfo) -> Iterator[dict[str, int]]:
        with open(f"{folder}/begun", "a") as begun:
            begun.write(f"{info.shard_idx}\n")
        yield {"sum": sum(number * number for number in range(1_000_000))}

    written = Dataset.from_list(range(shards)).map_shard(noted).write_jsonl(f"{folder}/out/{{shard}}.jsonl")
    with contextlib.redirect_stdout(io.StringIO()):
        create_backend("sync", scratch=f"{folder}/scratch").execute(written)


def measure_resume(shards: int) -> tuple[int, float, float]:
    """Return the shards made twice if SIGKILL ends a run at half, and the seconds without that and with it."""
    process = partial(multiprocessing.get_context("spawn").Process, target=_process_slowly)
    with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as folder:
        undisturbed = process(args=(whole, shards))
        begun = time.perf_counter()
        undisturbed.start()
        undisturbed.join()
        first, second = process(args=(folder, shards)), process(args=(folder, shards))
        between = time.perf_counter()
        first.start()
        while len(list(Path(folder).glob("out/*.jsonl"))) < shards // 2:
            time.sleep(0.01)
        first.kill()
        first.join()
        second.start()
        second.join()
        ended = time.perf_counter()
        repeated = len(Path(folder, "begun").read_text().split()) - shards
        return repeated, between - begun, ended - between


def measure_finished_on_cloud(shards: int, url: str) -> float:
    """Return the seconds of a run whose files are all in a bucket of the loopback cloud at ``url``."""
    os.environ["STORAGE_EMULATOR_HOST"] = url
    from tradewind.datasets import Dataset, create_backend

    numbers = Dataset.from_list(range(shards)).map(lambda number: {"number": number})
    written = numbers.write_jsonl("gs://bucket/{shard:05d}.jsonl", skip_existing=True)
    return _timed(lambda: create_backend("threadpool").execute(written))


def cloud_with_files(files: int) -> LocalCloudStorage:
    """Return a loopback cloud whose bucket has the files of a finished run."""
    from tradewind.rehearsal.cloud.cloud_storage import LocalCloudStorage

    cloud = LocalCloudStorage()
    cloud.buckets.create("bucket")
    for file in range(files):
        cloud.buckets.put("bucket", f"{file:05d}.jsonl", b'{"number":0}', {}, {})
    return cloud


def measure_finished(shards: int) -> float:
    """Return the seconds of a run whose files are all there."""
    from tradewind.datasets import Dataset, create_backend

    with tempfile.TemporaryDirectory() as folder:
        numbers = Dataset.from_list(range(shards)).map(lambda number: {"number": number})
        written = numbers.write_jsonl(f"{folder}/{{shard:05d}}.jsonl", skip_existing=True)
        backend = create_backend("threadpool")
        _timed(lambda: backend.execute(written))
        return _timed(lambda: backend.execute(written))
