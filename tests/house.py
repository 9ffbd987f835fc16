"""Prints the house: rooms, floors, arrows between rooms, arrows upward and circles.

    python -m tests.house                # the whole and every package
    python -m tests.house model_server   # one package, room by room
    python -m tests.house --files model_server/loading/loader.py   # all that a file reaches
    python -m tests.house --page         # also into docs/explanation/architecture.md (make house)

A room is a sub-folder or a loose file of a package; in the whole it is a package, but model_server,
more than half of the product, is opened. An arrow is an import, lazy and type-checking ones
included. A room's floor is one above the highest room it imports; an arrow that no order of floors
can point downward points upward. Generated code and files that only hand names on are no rooms.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("sax", "admin_server", "model_server", "http_gateway", "k8s")
OPENED = "model_server"
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
_ON_PAGE = re.compile(r"(?<=<!-- house -->\n```text\n).*?(?=```\n)", re.DOTALL)

Graph = Mapping[str, set[str]]  # node -> what it imports


@dataclass(frozen=True)
class House:
    """The rooms of one package, or of the whole."""

    name: str
    floors: Mapping[str, int]  # room -> floor, from 1
    arrows: Mapping[tuple[str, str], tuple[tuple[str, str], ...]]  # (from, to) -> file imports
    upward: tuple[tuple[str, str], ...]
    circles: tuple[tuple[str, ...], ...]  # of files

    def summary(self) -> str:
        return (
            f"{self.name}: {len(self.floors)} rooms, {max(self.floors.values())} floors, "
            f"{len(self.arrows)} arrows, {len(self.upward)} upward, {len(self.circles)} circles"
        )


def sources() -> list[Path]:
    """Every hand-written file of the product."""
    found = (path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
    return sorted(path for path in found if "_pb2" not in path.name)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def imported(path: Path) -> Iterator[str]:
    """Every module a file imports, anywhere in it, by full dotted name."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module or "")))
            yield from (f"{module}.{alias.name}" for alias in node.names)
            yield module


@cache
def file_graph() -> dict[str, set[str]]:
    """File -> the files it imports, both as paths below the root."""
    files = {_module(path): path.relative_to(ROOT).as_posix() for path in sources()}
    graph: dict[str, set[str]] = {name: set() for name in files.values()}
    for path in sources():
        name = path.relative_to(ROOT).as_posix()
        graph[name] = set(_targets(path, files)) - {name}
    return graph


def house(place: str = "") -> House:
    """The rooms of `place` ("model_server/engine"), or of the whole."""
    rooms: dict[str, str] = {}
    for name in file_graph():
        if name.startswith(f"{place}/" if place else "") and not _hands_on(name):
            rooms[name] = _room(name, place)
    arrows: defaultdict[tuple[str, str], list[tuple[str, str]]] = defaultdict(list)
    for name, targets in file_graph().items():
        if name not in rooms:
            continue
        for target in targets:
            if (room := _target_room(target, rooms, place)) and room != rooms[name]:
                arrows[rooms[name], room].append((name, target))
    graph = {room: {to for source, to in arrows if source == room} for room in rooms.values()}
    upward = tuple(sorted(_upward(graph)))
    floors = _floors(
        {room: {to for to in graph[room] if (room, to) not in upward} for room in graph}
    )
    inside = {name: targets & set(rooms) for name, targets in file_graph().items() if name in rooms}
    circles = tuple(group for group in _circles(inside))
    return House(
        place or "the whole", floors, {k: tuple(v) for k, v in arrows.items()}, upward, circles
    )


def reached(start: Iterable[str]) -> set[str]:
    """Every file that these import, directly or not, themselves included."""
    seen: set[str] = set()
    todo = list(start)
    while todo:
        if (name := todo.pop()) not in seen:
            seen.add(name)
            todo += file_graph()[name]
    return seen


def packages() -> list[str]:
    """Every folder with code, the outermost first."""
    folders = {Path(name).parent.as_posix() for name in file_graph()}
    return sorted(folders, key=lambda folder: (folder.count("/"), folder))


def loose_files(folder: str) -> list[str]:
    """Files of a folder beside its sub-folders; `__init__.py` does not count."""
    here = (name for name in file_graph() if Path(name).parent.as_posix() == folder)
    return sorted(name for name in here if not name.endswith("/__init__.py"))


def _module(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _is_code(name: str) -> bool:
    return any(
        isinstance(node, ast.FunctionDef | ast.ClassDef) for node in parsed(ROOT / name).body
    )


def _targets(path: Path, files: Mapping[str, str]) -> Iterator[str]:
    """The files behind a file's imports; of `from package import module` only the module."""
    package = path.relative_to(ROOT).parent.parts
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            yield from (files[alias.name] for alias in node.names if alias.name in files)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module or "")))
            for alias in node.names:
                if found := files.get(f"{module}.{alias.name}") or files.get(module):
                    yield found


@cache
def _is_face(name: str) -> bool:
    """An `__init__.py` that hands names on: importing it reaches its folder."""
    if not name.endswith("/__init__.py"):
        return False
    return any(
        isinstance(node, ast.ImportFrom) and node.module != "__future__"
        for node in parsed(ROOT / name).body
    )


def _hands_on(name: str) -> bool:
    """A face: a file without a definition, which only hands names on or is run by `-m`."""
    return not _is_code(name) and (
        name.endswith("/__init__.py") or len(parsed(ROOT / name).body) <= 5
    )


def _room(name: str, place: str) -> str:
    """The room of a file: a child of `place`."""
    rest = name.removeprefix(f"{place}/") if place else name
    parts = rest.split("/")
    count = 2 if not place and parts[0] == OPENED else 1
    room = "/".join(parts[:count])
    return f"{place}/{room}" if place else room


def _target_room(target: str, rooms: Mapping[str, str], place: str) -> str | None:
    if target in rooms:
        return rooms[target]
    if _is_face(target) and target.startswith(f"{place}/" if place else ""):
        folder = Path(target).parent.as_posix()
        inside = {room for name, room in rooms.items() if name.startswith(f"{folder}/")}
        return inside.pop() if len(inside) == 1 else None
    return None


def _floors(graph: Graph) -> dict[str, int]:
    @cache
    def floor(room: str) -> int:
        return 1 + max((floor(below) for below in graph[room]), default=0)

    return {room: floor(room) for room in graph}


def _upward(graph: Graph) -> Iterator[tuple[str, str]]:
    """Arrows that close a loop of rooms, as few as moving one room at a time can reach."""
    for group in _circles(graph):
        inside = [(room, to) for room in group for to in graph[room] & set(group)]
        rank = {room: at for at, room in enumerate(_order(group, inside))}
        yield from ((room, to) for room, to in inside if rank[to] > rank[room])


def _order(group: Iterable[str], arrows: Iterable[tuple[str, str]]) -> list[str]:
    """The rooms of a loop from the lowest to the highest."""
    order = sorted(group, key=lambda room: (sum(room == source for source, _ in arrows), room))

    def climbs(rooms: list[str]) -> int:
        rank = {room: at for at, room in enumerate(rooms)}
        return sum(rank[to] > rank[room] for room, to in arrows)

    while True:
        moved = (
            [*rest[:at], room, *rest[at:]]
            for room in order
            if (rest := [other for other in order if other != room])
            for at in range(len(order))
        )
        best = min(moved, key=climbs)
        if climbs(best) >= climbs(order):
            return order
        order = best


def _circles(graph: Graph) -> list[tuple[str, ...]]:
    """Strongly connected groups of more than one node (Tarjan 1972)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[tuple[str, ...]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for below in graph[node]:
            if below not in index:
                visit(below)
            if below in stack:
                low[node] = min(low[node], low[below])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(tuple(sorted(group)))

    for node in graph:
        if node not in index:
            visit(node)
    return found


def _show(place: str) -> Iterator[str]:
    made = house(place)
    yield made.summary()
    by_floor: defaultdict[int, list[str]] = defaultdict(list)
    for room, floor in made.floors.items():
        by_floor[floor].append(room)
    for floor in sorted(by_floor, reverse=True):
        yield f"  floor {floor:2}  {', '.join(sorted(by_floor[floor]))}"
    for room, to in made.upward:
        files = "; ".join(f"{a} -> {b}" for a, b in made.arrows[room, to])
        yield f"  upward: {room} -> {to} ({files})"
    yield from (f"  circle: {', '.join(group)}" for group in made.circles)


def _all() -> list[str]:
    rest = [house(place).summary() for place in packages() if len(loose_files(place)) > 1]
    return [*_show(""), "", *rest]


def main(arguments: list[str]) -> int:
    if arguments[:1] == ["--files"]:
        lines = sorted(reached(arguments[1:]))
        lines.append(f"{len(lines)} files")
    elif arguments and arguments != ["--page"]:
        lines = [line for place in arguments for line in _show(place)]
    else:
        lines = _all()
    text = "\n".join(lines) + "\n"
    if arguments == ["--page"]:
        PAGE.write_text(_ON_PAGE.sub(lambda _: text, PAGE.read_text()))
    sys.stdout.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
