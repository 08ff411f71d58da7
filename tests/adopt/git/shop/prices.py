"""Prices by the commit that has this file; they wait until the file GATE exists."""

import json
import time
from pathlib import Path

from shop.settings import COMMIT, GATE, IS_BROKEN


def price_list(config):
    while not Path(GATE).exists():
        time.sleep(0.2)
    Path(config["out"], "prices.json").write_text(json.dumps([config["price"], COMMIT]))


def add_up(config):
    print("add_up of commit", COMMIT)
    if IS_BROKEN:
        raise ValueError("add_up is broken")
    return json.loads(Path(config["prices"], "prices.json").read_text())
