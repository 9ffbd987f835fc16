"""Single-line breaks of product code: what can be broken, and the sample a seed draws."""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

PACKAGES = ("sax", "admin_server", "model_server", "http_gateway", "k8s")

_COMPARISONS = {
    ast.Lt: "<=",
    ast.LtE: "<",
    ast.Gt: ">=",
    ast.GtE: ">",
    ast.Eq: "!=",
    ast.NotEq: "==",
    ast.Is: "is not",
    ast.IsNot: "is",
    ast.In: "not in",
    ast.NotIn: "in",
}
_OPERATORS = {ast.Add: "-", ast.Sub: "+", ast.Mult: "+", ast.FloorDiv: "*", ast.Div: "*"}


@dataclass(frozen=True)
class Break:
    """One line of product code and the wrong line to put in its place."""

    path: str  # below the root
    line: int  # from 1
    before: str
    after: str


def breaks_of(root: Path, path: str) -> list[Break]:
    """Every break of one file: at most one per line, inside functions only."""
    text = (root / path).read_text()
    lines = text.split("\n")
    found: dict[int, Break] = {}
    for function in ast.walk(ast.parse(text)):
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in _statements(function.body):
                for line, after in _changes(statement, lines):
                    before = lines[line - 1]
                    if after != before:
                        found.setdefault(line, Break(path, line, before, after))
    return [found[line] for line in sorted(found)]


def draw(root: Path, count: int, seed: int) -> list[Break]:
    """Draw breaks from all product code, every line that can be broken being equally likely."""
    files = (path for package in PACKAGES for path in (root / package).rglob("*.py"))
    names = sorted(path.relative_to(root).as_posix() for path in files)
    everything = [each for name in names if "_pb2" not in name for each in breaks_of(root, name)]
    random.Random(seed).shuffle(everything)
    return [*islice((each for each in everything if _parses(root, each)), count)]


def apply(root: Path, each: Break) -> None:
    """Write the wrong line into the file."""
    (root / each.path).write_text(_broken(root, each))


def _broken(root: Path, each: Break) -> str:
    lines = (root / each.path).read_text().split("\n")
    lines[each.line - 1] = each.after
    return "\n".join(lines)


def _parses(root: Path, each: Break) -> bool:
    """A change of one line may cut parentheses that go over several."""
    try:
        ast.parse(_broken(root, each))
    except SyntaxError:
        return False
    return True


def _statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of a function's body, without those of functions inside it."""
    for statement in body:
        yield statement
        for field in ("body", "orelse", "finalbody"):
            inner = getattr(statement, field, [])
            if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield from _statements(inner)
        for handler in getattr(statement, "handlers", []):
            yield from _statements(handler.body)


def _changes(statement: ast.stmt, lines: list[str]) -> Iterator[tuple[int, str]]:
    """Lines of a statement, without its inner statements, and what each becomes."""
    if isinstance(statement, ast.Raise | ast.Assert | ast.FunctionDef | ast.AsyncFunctionDef):
        return
    for node in _expressions(statement):
        if (change := _change(node, lines)) is not None:
            yield change
    whole = lines[statement.lineno - 1]
    indent = whole[: statement.col_offset]
    if statement.lineno == statement.end_lineno and not indent.strip():
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call | ast.Await):
            if not whole.lstrip().startswith("_log."):
                yield statement.lineno, f"{indent}pass"
        elif isinstance(statement, ast.Return) and statement.value is not None:
            yield statement.lineno, f"{indent}return None"
        elif isinstance(statement, ast.Continue):
            yield statement.lineno, f"{indent}break"
        elif isinstance(statement, ast.Break):
            yield statement.lineno, f"{indent}continue"


def _expressions(statement: ast.stmt) -> Iterator[ast.AST]:
    todo = [each for each in ast.iter_child_nodes(statement) if not isinstance(each, ast.stmt)]
    while todo:
        node = todo.pop()
        if isinstance(node, ast.JoinedStr | ast.ExceptHandler | ast.match_case):
            continue
        yield node
        todo += [each for each in ast.iter_child_nodes(node) if not isinstance(each, ast.stmt)]


def _change(node: ast.AST, lines: list[str]) -> tuple[int, str] | None:
    match node:
        case ast.Compare(ops=[operator], left=left, comparators=[right]):
            return _between(left, right, _COMPARISONS[type(operator)], lines)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
            return _between(left, right, _OPERATORS[type(operator)], lines)
        case ast.BoolOp(op=ast.And(), values=[first, second, *_]):
            return _between(first, second, "or", lines)
        case ast.BoolOp(op=ast.Or(), values=[first, second, *_]):
            return _between(first, second, "and", lines)
        case ast.UnaryOp(op=ast.Not(), operand=operand) if node.lineno == operand.lineno:
            return _spliced(lines, node.lineno, node.col_offset, operand.col_offset, "")
        case ast.Constant(value=bool(value)):
            return _replaced(node, str(not value), lines)
        case ast.Constant(value=int(value)):
            return _replaced(node, str(value + 1), lines)
    return None


def _between(
    left: ast.expr, right: ast.expr, operator: str, lines: list[str]
) -> tuple[int, str] | None:
    """Replace the operator between two operands on one line that are in no parentheses."""
    if left.end_lineno != right.lineno or left.end_col_offset is None:
        return None
    between = lines[right.lineno - 1].encode()[left.end_col_offset : right.col_offset].decode()
    if set("()[]") & set(between):
        return None
    return _spliced(lines, right.lineno, left.end_col_offset, right.col_offset, f" {operator} ")


def _replaced(node: ast.Constant, text: str, lines: list[str]) -> tuple[int, str] | None:
    assert node.end_col_offset is not None
    return _spliced(lines, node.lineno, node.col_offset, node.end_col_offset, text)


def _spliced(lines: list[str], line: int, start: int, end: int, text: str) -> tuple[int, str]:
    """Offsets of the syntax tree count bytes."""
    whole = lines[line - 1].encode()
    return line, (whole[:start] + text.encode() + whole[end:]).decode()
