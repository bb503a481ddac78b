"""The board's screen; the only module that needs textual."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.widgets import DataTable, Footer, Header, Static

from .board import COLUMNS, Seen, details, row


class Board(App[None]):
    """A line a run; below, all that is to be said of the one that is chosen."""

    TITLE = "fedquilt"
    CSS = """
    DataTable { height: auto; max-height: 60%; }
    #pane { height: 1fr; border-top: solid $primary; padding: 0 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [("q", "quit", "Quit"), ("r", "look", "Look again")]

    def __init__(self, seen: Seen, every: float) -> None:
        super().__init__()
        self.seen, self.every = seen, every

    def compose(self) -> ComposeResult:
        """The table, the pane, and what the keys do."""
        yield Header()
        yield DataTable(cursor_type="row", zebra_stripes=True)
        with VerticalScroll(id="pane"):
            yield Static(id="details")
        yield Footer()

    def on_mount(self) -> None:
        """Begin to look."""
        lines = self.query_one(DataTable)
        for name in COLUMNS:
            lines.add_column(name, key=name)
        lines.focus()
        self.action_look()
        self.set_interval(self.every, self.action_look)

    def action_look(self) -> None:
        """Take in what is new."""
        self.seen.look()
        lines = self.query_one(DataTable)
        there = {str(key.value) for key in lines.rows}
        for gone in there - {str(p) for p in self.seen.sights}:
            lines.remove_row(gone)
        for path, sight in self.seen.sights.items():
            cells = row(sight, self.seen.folder)
            if str(path) not in there:
                lines.add_row(*cells, key=str(path))
                continue
            for name, cell in zip(COLUMNS, cells, strict=True):
                lines.update_cell(str(path), name, cell, update_width=True)
        states = [s.state for s in self.seen.sights.values()]
        self.sub_title = ", ".join(f"{states.count(s)} {s}" for s in ("at work", "finished", "stopped"))
        self._tell()

    def on_data_table_row_highlighted(self) -> None:
        """Another line was chosen."""
        self._tell()

    def _tell(self) -> None:
        lines = self.query_one(DataTable)
        pane = self.query_one("#details", Static)
        if not lines.row_count:
            pane.update(f"There is no run in {self.seen.folder} yet.")
            return
        key = lines.coordinate_to_cell_key(lines.cursor_coordinate).row_key.value
        pane.update(details(self.seen.sights[Path(str(key))]))
