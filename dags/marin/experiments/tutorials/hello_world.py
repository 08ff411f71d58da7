"""Greet some names, then count the letters: two steps, in the style of Marin's experiments."""

import json
import logging
import os
from dataclasses import dataclass

import fsspec
from marin.execution.executor import ExecutorStep, executor_main, output_path_of, this_output_path, versioned

logger = logging.getLogger("ray")

NAMES = ["Ada", "Grace", "Katherine"]


@dataclass(frozen=True)
class GreetConfig:
    names: list[str]
    """Names to greet."""

    output_path: str
    """Gets ``greetings.json``, a list of texts."""


@dataclass(frozen=True)
class CountConfig:
    input_path: str
    """Folder of the greetings."""

    output_path: str
    """Gets ``letters.json``: the number of letters of each greeting, and of all."""


def greet(config: GreetConfig) -> None:
    greetings = [f"Hello, {name}!" for name in config.names]
    with fsspec.open(os.path.join(config.output_path, "greetings.json"), "w") as file:
        json.dump(greetings, file)


def count(config: CountConfig) -> None:
    with fsspec.open(os.path.join(config.input_path, "greetings.json")) as file:
        greetings = json.load(file)
    letters = {greeting: sum(map(str.isalpha, greeting)) for greeting in greetings}
    logger.info(f"The greetings have {sum(letters.values())} letters.")
    with fsspec.open(os.path.join(config.output_path, "letters.json"), "w") as file:
        json.dump({"each": letters, "all": sum(letters.values())}, file)


greetings = ExecutorStep(
    name="hello_world/greetings",
    description=f"Greets {len(NAMES)} names.",
    fn=greet,
    config=GreetConfig(names=versioned(NAMES), output_path=this_output_path()),
)

letters = ExecutorStep(
    name="hello_world/letters",
    description="Counts the letters of the greetings.",
    fn=count,
    config=CountConfig(input_path=output_path_of(greetings), output_path=this_output_path()),
)

if __name__ == "__main__":
    executor_main(steps=[greetings, letters], description="Counts the letters of some greetings.")
