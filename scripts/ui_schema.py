"""Print the OpenAPI schema of the plugin's application, from which its pages' client is generated."""

from __future__ import annotations

import json

from tradewind_ui.api.app import pages

if __name__ == "__main__":
    print(json.dumps(pages.openapi(), indent=2, sort_keys=True))
