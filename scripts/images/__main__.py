"""``python -m scripts.images``: command of the make targets in ``docker/images.mk``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from scripts.images.builder import Builder
from scripts.images.commands import Commands
from scripts.images.places import IMAGES, REGISTRY, Repository, repositories
from scripts.images.release import name_tag, push_all, refuse_unfinished
from tradewind.fleet.errors import FleetError
from tradewind.fleet.fleet_file import USUAL_FILE, load_fleet

STEPS = ("build", "tag", "push", "name")


def main(arguments: list[str]) -> int:
    """Run the command; return 1 if it failed."""
    options = _parser().parse_args(arguments)
    try:
        _run(options)
    except FleetError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _run(options: argparse.Namespace) -> None:
    image, fleet = IMAGES[options.image], load_fleet(options.fleet)
    commands = Commands(options.dry_run)
    builder = Builder(commands, options.builder, options.registry, dict(options.secret))
    # First, to refuse a wrong region before building an image.
    places: list[Repository] = repositories(fleet, image, options.regions.split(), options.repository or None)
    tags = options.tags.split()
    if "build" in options.steps:
        builder.build(image, options.fleet_tag, dict(options.build_arg))
    if "tag" in options.steps:
        builder.tag(image, places, tags)
    pushed, problems = push_all(builder, image, places, tags) if "push" in options.steps else (places, [])
    if "name" in options.steps:
        name_tag(fleet, image, pushed, options.fleet_tag, is_dry=options.dry_run)
    refuse_unfinished(problems, pushed)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.images", description="Build and publish an image.")
    parser.add_argument("steps", nargs="+", choices=STEPS, help="what to do, always in this order")
    parser.add_argument("--image", choices=IMAGES, default="cluster")
    parser.add_argument("--regions", default="", help="only to these; default: wherever clusters of the fleet run it")
    parser.add_argument("--tags", required=True, help="what it is tagged and pushed as")
    parser.add_argument("--fleet-tag", required=True, help="what the fleet file names")
    parser.add_argument("--fleet", type=Path, default=USUAL_FILE)
    parser.add_argument("--repository", default="", help="only to repositories of this name")
    parser.add_argument("--builder", default="docker", help="docker, podman or buildah")
    parser.add_argument("--registry", default=REGISTRY, help="of a region and project")
    parser.add_argument("--build-arg", type=_pair, action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--secret", type=_pair, action="append", default=[], metavar="NAME=FILE")
    parser.add_argument("--dry-run", action="store_true", help="only print the commands")
    return parser


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is no NAME=VALUE")
    return name, value


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
