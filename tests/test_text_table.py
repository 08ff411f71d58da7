"""Rows become lines with aligned columns, for any cell content."""

from __future__ import annotations

from tradewind.text import as_csv, as_markdown, format_columns, markdown_text


def test_columns_fit_widest_cell_and_rows_stay_one_line() -> None:
    assert format_columns([("STEP", "STATE"), ("data/raw", "ok"), ("x", "")]) == [
        "STEP      STATE",
        "data/raw  ok",
        "x",
    ]
    assert format_columns([]) == []
    assert format_columns([("step", "why", "when"), ("a\nb", "no\r\ncapacity\n", "now")]) == [
        "step  why          when",
        "a b   no capacity  now",
    ]


def test_markdown_escapes_bars_tags_and_links() -> None:
    rows = [("run", "why"), ("a|b", "no\ncapacity")]
    assert as_markdown(rows) == "| run | why |\n| --- | --- |\n| a\\|b | no capacity |"
    assert markdown_text("<b> [x](y)\n![z](y)") == r"\<b> \[x\](y) !\[z\](y)"
    assert markdown_text("`<b>`") == "`<b>`"
    assert markdown_text("\x1b[31m\u202e") == r"\x1b\[31m\u202e"
    assert markdown_text("`a` <b>") == r"`a` \<b>"


def test_csv_cell_is_no_formula_of_a_spreadsheet() -> None:
    cells = ["=1+1", "+cmd", "-cmd", "@x", "-0.5", "+1e-3", "-inf", "a=1", ""]
    assert as_csv([cells]) == "'=1+1,'+cmd,'-cmd,'@x,-0.5,+1e-3,-inf,a=1,\n"
