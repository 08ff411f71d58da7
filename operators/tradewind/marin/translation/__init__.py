"""On the cluster: configs of the era become objects of the classes of the Levanter that is installed there.

A value is written down with the name of its class and all its fields as they were. Here it is read back: classes and
fields that have moved are found, those that hold the same under another form are converted, and a value for which
there is nothing any more is an error, unless it is the one that everybody had. A Levanter of the era gets the values
as they are. Neither Airflow nor the loader is imported.
"""

from __future__ import annotations

from tradewind.marin.translation.rebuilding import rebuilt

__all__ = ["rebuilt"]
