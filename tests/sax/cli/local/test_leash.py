"""The leash runs a module as if it were the program. Its death with its supervisor is tested in
test_supervisor.py."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from sax.cli.local.leash import code_file

ROOT = str(Path(__file__).parents[4])
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"

LEASH = ("-m", "sax.cli.local.leash")
# Its imports are over sooner.
SOON = "from sax.cli.local import leash; leash._IMPORTS_S = 0.2; leash.main()"


def leashed(folder: Path, *words: str, leash: tuple[str, ...] = LEASH) -> tuple[int, str]:
    """Run the leash with its standard input held open, as a supervisor does."""
    reader, writer = os.pipe()
    kept = {name: value for name, value in os.environ.items() if name != NO_BYTECODE}
    try:
        process = subprocess.run(
            [sys.executable, *leash, *words],
            stdin=reader,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**kept, "PYTHONPATH": os.pathsep.join((str(folder), ROOT))},
        )
    finally:
        os.close(reader)
        os.close(writer)
    return process.returncode, process.stdout


def test_the_module_sees_its_flags_and_its_exit_code_is_kept(tmp_path: Path) -> None:
    source = "import sys\nif __name__ == '__main__':\n    print(sys.argv[1:])\n    sys.exit(5)\n"
    (tmp_path / "hello.py").write_text(source)
    assert leashed(tmp_path, "hello", "--a", "b") == (5, "['--a', 'b']\n")


def test_a_leash_without_a_module_says_how_to_use_it(tmp_path: Path) -> None:
    code, text = leashed(tmp_path)
    assert code == 2
    assert "MODULE" in text


def test_garbage_is_collected_once_the_module_has_been_imported(tmp_path: Path) -> None:
    source = """
import gc, time
print(gc.isenabled())
while not gc.isenabled():
    time.sleep(0.05)
print(gc.get_freeze_count() > 0)
"""
    (tmp_path / "hello.py").write_text(source)
    assert leashed(tmp_path, "hello", leash=("-c", SOON)) == (0, "False\nTrue\n")


def test_the_code_of_dataclasses_is_kept_and_a_damaged_file_is_written_anew(tmp_path: Path) -> None:
    source = """
import dataclasses, time
@dataclasses.dataclass(frozen=True)
class Pair:
    one: int
    two: str = "b"
print(Pair(1), Pair(1) == Pair(1, "b"), len({Pair(1), Pair(2)}))
while vars(dataclasses).get("exec"):
    time.sleep(0.05)
"""
    (tmp_path / "pairs.py").write_text(source)
    kept = code_file("pairs")
    told = (0, "Pair(one=1, two='b') True 2\n")
    compiled = (
        "from sax.cli.local import leash; leash.compile = lambda text, *_, **__: 1 / 0\n" + SOON
    )
    try:
        assert leashed(tmp_path, "pairs", leash=("-c", SOON)) == told
        assert leashed(tmp_path, "pairs", leash=("-c", compiled)) == told, "nothing is compiled"
        whole = kept.read_bytes()
        kept.write_bytes(whole[:-9])
        assert leashed(tmp_path, "pairs", leash=("-c", compiled))[0] != 0
        assert leashed(tmp_path, "pairs", leash=("-c", SOON)) == told
        assert kept.read_bytes() == whole
    finally:
        kept.unlink(missing_ok=True)
