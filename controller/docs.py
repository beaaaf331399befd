"""Writes the reference pages of all fault kinds, `docs/kinds/*.md`, from their specs.

`python -m controller.docs [DIRECTORY]` writes them; with `--check` it only compares, and ends
with 1 when a page is missing, stale or left over.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click

from controller.cli.inject import common_options
from controller.options import model_options, target_options
from nodeagent.faults import kinds
from nodeagent.model.kind import FaultKind

PLACE = Path(__file__).resolve().parent.parent / "docs" / "kinds"
NOTE = "<!-- Written by `python -m controller.docs` from the kind itself; edit that. -->"


def pages() -> dict[str, str]:
    """Every page by its file name."""
    plain = [kind for kind in kinds().values() if not family(kind)]
    found = {"README.md": index(plain), **{f"{kind.name}.md": page(kind) for kind in plain}}
    for name in dict.fromkeys(family(kind) for kind in kinds().values()):
        if name:
            presets = [kind for kind in kinds().values() if family(kind) == name]
            found[f"{name}.md"] = preset_page(name, presets)
    return found


def family(kind: FaultKind) -> str:
    """`khaos` for the preset `khaos:read_error`; empty for a kind of its own."""
    return kind.name.rpartition(":")[0]


def preset_page(name: str, presets: Iterable[FaultKind]) -> str:
    """One page for all presets of a name: kinds with their options set for a known fault."""
    lines = [NOTE, "", f"# Presets: {name}", "", "| preset | what | targets | example |"]
    lines.append("|---|---|---|---|")
    for kind in presets:
        example = f"`{_cell(kind.examples[0])}`"
        targets = ", ".join(kind.targets)
        lines.append(f"| {kind.name} | {_cell(kind.summary)} | {targets} | {example} |")
    return "\n".join(lines) + "\n"


def index(listed: Iterable[FaultKind]) -> str:
    """The list of all kinds."""
    lines = [NOTE, "", "# Fault kinds", "", "| kind | what | targets | mechanisms, best first |"]
    lines.append("|---|---|---|---|")
    for kind in listed:
        rungs = ", ".join(rung.name for rung in kind.ladder)
        name = f"[{kind.name}]({kind.name}.md)"
        lines.append(f"| {name} | {_cell(kind.summary)} | {', '.join(kind.targets)} | {rungs} |")
    groups = dict.fromkeys(filter(None, map(family, kinds().values())))
    lines += ["", *(f"Presets of these kinds: [{name}]({name}.md)." for name in groups)]
    lines += ["", "Options that every kind has:", "", *_options(common_options())]
    return "\n".join(lines) + "\n"


def page(kind: FaultKind) -> str:
    """One kind's page."""
    rungs = [f"{n}. `{rung.name}`: {rung.summary}" for n, rung in enumerate(kind.ladder, 1)]
    parts = [
        [NOTE, "", f"# {kind.name}", "", f"{kind.summary[0].upper()}{kind.summary[1:]}."],
        [kind.doc.strip()],
        ["## Examples", "", "```sh", *kind.examples, "```"],
        ["## Targets", "", *_options(target_options(kind))],
        ["## Options", "", *(_options(model_options(kind.spec)) or ["None of its own."])],
        ["[Options that every kind has](README.md)."],
        ["## Mechanisms, best first", "", *rungs],
        ["The plan says which one is taken and why not those above it; `--mechanism` forces one."],
        ["## What no revert takes back", "", *_list(kind.collateral(kind.spec.model_construct()))],
        ["## How an operator can end it", "", *_list(kind.remedies)],
    ]
    if kind.no_hits_hint:
        hint = f"{kind.no_hits_hint[0].upper()}{kind.no_hits_hint[1:]}."
        parts.append(["## When it is armed and nothing is hit", "", hint])
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def _options(params: Iterable[click.Parameter]) -> list[str]:
    rows = [_option(p) for p in params if isinstance(p, click.Option)]
    return ["| option | meaning |", "|---|---|", *rows] if rows else []


def _option(option: click.Option) -> str:
    flags = ", ".join(f"`{flag}`" for flag in (*option.opts, *option.secondary_opts))
    return f"| {flags}{_value(option)} | {_cell(option.help or '')} |"


def _value(option: click.Option) -> str:
    if option.is_flag:
        return ""
    if isinstance(option.type, click.Choice):
        return f" `{'|'.join(map(str, option.type.choices))}`".replace("|", "\\|")
    return f" `{option.metavar or 'TEXT'}`"


def _list(lines: Iterable[str]) -> list[str]:
    return [f"- {line}" for line in lines]


def _cell(text: Any) -> str:
    return " ".join(str(text).split()).replace("|", "\\|")


def stale(place: Path) -> list[str]:
    """Names of pages that are missing, differ, or belong to no kind."""
    wanted = pages()
    have = {path.name: path.read_text(encoding="utf-8") for path in place.glob("*.md")}
    return sorted(name for name in {*wanted, *have} if wanted.get(name) != have.get(name))


def write(place: Path) -> None:
    """Write all pages, and take away what belongs to no kind any more."""
    place.mkdir(parents=True, exist_ok=True)
    wanted = pages()
    for path in place.glob("*.md"):
        if path.name not in wanted:
            path.unlink()
    for name, text in wanted.items():
        (place / name).write_text(text, encoding="utf-8")


@click.command()
@click.option("--check", is_flag=True, help="only compare; exit 1 when a page is stale")
@click.argument("place", type=click.Path(path_type=Path), default=PLACE, required=False)
def main(check: bool, place: Path) -> None:
    """Write the reference pages of all fault kinds."""
    if not check:
        write(place)
        return
    names = stale(place)
    for name in names:
        click.echo(f"{place / name} is not current: python -m controller.docs", err=True)
    sys.exit(1 if names else 0)


if __name__ == "__main__":
    main()
