"""Flags that several commands have, each said once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Group, Parameter

RUN = Group("The run", sort_key=2)
WORK = Group("How to work", sort_key=3)
OUTPUT = Group("Output", sort_key=4)
Out = Annotated[Path | None, Parameter(group=OUTPUT, help="the folder that keeps it", show_default=False)]
Force = Annotated[
    bool,
    Parameter(group=OUTPUT, help="do it anew: remove the run in the folder", negative=(), show_default=False),
]
Json = Annotated[
    bool,
    Parameter(group=OUTPUT, help="JSON on standard output instead of tables", negative=(), show_default=False),
]
Quiet = Annotated[bool, Parameter(group=OUTPUT, help="no progress, no table", negative=(), show_default=False)]
Dry = Annotated[bool, Parameter(group=WORK, help="check everything and say what would run", negative=())]
Jobs = Annotated[
    int | None,
    Parameter(group=WORK, help="how many runs at a time, each in a process of one thread", show_default=False),
]
Track = Annotated[
    list[str] | None,
    Parameter(group=OUTPUT, help="tell these too: tensorboard, mlflow, wandb", negative=(), show_default=False),
]
Seeds = Annotated[str | None, Parameter(group=WORK, help="how many, or which: 3 is 0,1,2", show_default=False)]
Sets = Annotated[
    list[str] | None,
    Parameter(group=RUN, help="a name (fedquilt list data), or several", negative=(), show_default=False),
]
Sharings = Annotated[
    list[str] | None,
    Parameter(
        group=RUN, help="who gets which samples: dirichlet:0.1, iid, ..., or several", negative=(), show_default=False
    ),
]
Beside = Annotated[bool, Parameter(group=WORK, help="local and fine-tuned fedavg stand beside", show_default=False)]
Word = Annotated[str, Parameter(show_default=False)]
