"""What a page names exists: files, headings, commands of make; and its blocks say what they are."""

from __future__ import annotations

import re
import shlex
import subprocess

from model_server.flags.command_line import make_config
from model_server.multihost.membership import membership
from tests.docs.blocks import (
    COMING,
    CONTINUED,
    EVENING,
    ISLANDS,
    PAGES,
    PLANNING,
    README,
    SEVERAL_HOSTS,
)
from tests.each_case import each_case
from tests.house import ROOT

BLOCKS = README + CONTINUED + EVENING + ISLANDS + SEVERAL_HOSTS + PLANNING
PACKAGES = "sax|admin_server|model_server|http_gateway|k8s|tests|docs"
INDEX = "docs/index.md"
PEERS = ("From vLLM", "From Ollama", "From llama.cpp", "From Saxml")
TPU_SLICE = {"TPU_WORKER_HOSTNAMES": "tpu-0,tpu-1,tpu-2,tpu-3", "TPU_WORKER_ID": "1"}
LEADER_WORKER_SET = {
    "LWS_LEADER_ADDRESS": "gemma-0.gemma",
    "LWS_GROUP_SIZE": "4",
    "LWS_WORKER_INDEX": "1",
}
JOB = {"JOB_COMPLETION_INDEX": "1"}


def test_every_block_says_its_language() -> None:
    assert BLOCKS
    assert {block.language for block in BLOCKS} == {"sh", "python", "text"}


def test_the_make_commands_exist() -> None:
    lines = [line for block in BLOCKS if block.only_make for line in block.text.split("\n") if line]
    assert lines == ["make demo", "make test", "make demo", "make minilm", "make plans"]
    for line in lines:
        subprocess.run([*line.split(), "--dry-run"], cwd=ROOT, check=True, capture_output=True)


def named(page: str) -> list[str]:
    return re.findall(rf"`((?:{PACKAGES})/[\w./*-]*)`", PAGES[page])


def test_the_pages_name_files() -> None:
    assert len(named("docs/explanation/architecture.md")) > 60
    assert sum(len(named(page)) for page in PAGES) > 90


@each_case("page", PAGES)
def test_every_file_that_a_page_names_exists(page: str) -> None:
    assert [name for name in named(page) if not any(ROOT.glob(name.rstrip("/")))] == []
    folder = (ROOT / page).parent
    linked = re.findall(r"\]\(([\w./]+)(?:#[\w-]*)?\)", PAGES[page])
    assert [name for name in linked if not (folder / name).exists()] == []


@each_case("page", [*PAGES, "CHANGELOG.md"])
def test_every_heading_that_a_page_links_to_exists(page: str) -> None:
    folder, here = (ROOT / page).parent, (ROOT / page).read_text()
    for name, anchor in re.findall(r"\]\(([\w./]*\.md)?#([\w-]+)\)", here):
        text = (folder / name).read_text() if name else here
        headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        slugs = [re.sub(r"[^\w -]", "", each.lower()).replace(" ", "-") for each in headings]
        marked = re.findall(r'<a id="([\w-]+)">', text)
        assert anchor in {*slugs, *marked}, f"{name}#{anchor}"


def test_the_index_lists_every_page_once_under_its_shelf() -> None:
    shelves = re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGES[INDEX], re.DOTALL | re.MULTILINE)
    listed = {
        name.lower().replace("-", "_"): re.findall(r"^- \[.+?\]\((.+?)\): .+", text, re.MULTILINE)
        for name, text in shelves
    }
    folders = {path.parent.name for path in (ROOT / "docs").glob("*/*.md")}
    assert set(listed) == folders == {"tutorial", "how_to", "reference", "explanation"}
    assert [path.name for path in (ROOT / "docs").glob("*.md")] == ["index.md"]
    for shelf, links in listed.items():
        pages = sorted(path.name for path in (ROOT / "docs" / shelf).glob("*.md"))
        assert sorted(links) == [f"{shelf}/{page}" for page in pages]


def test_the_readme_is_short_and_leads_to_the_shelves() -> None:
    lines = PAGES["README.md"].splitlines()
    assert len(lines) <= 150
    assert {"make demo", "make test"} <= set(lines[:25])
    for shelf in ("tutorial", "how-to", "reference", "explanation"):
        assert f"({INDEX}#{shelf})" in PAGES["README.md"]


def test_each_peer_is_told_what_was_typed_there_and_what_to_type_here() -> None:
    assert list(dict.fromkeys(block.section for block in COMING))[1:] == [*PEERS]
    for peer in PEERS:
        languages = [block.language for block in COMING if block.section == peer]
        assert languages[0] == "text"
        assert languages.count("sh") >= 2
        assert set(languages) <= {"text", "sh", "python"}


@each_case(
    "number, environ, hostname",
    [
        (2, {}, "tpu-1"),
        (3, TPU_SLICE, "gke-node"),
        (3, LEADER_WORKER_SET, "gemma-0-1"),
        (4, JOB, "gemma-server-0-1"),
        (4, JOB, "gemma-1"),
    ],
)
def test_the_commands_for_a_cluster_make_one_gang_of_its_hosts(
    number: int, environ: dict[str, str], hostname: str
) -> None:
    words = shlex.split(SEVERAL_HOSTS[number].text)
    command = words.index("python")
    assert words[command : command + 3] == ["python", "-m", "model_server"]
    config = make_config(words[command + 3 :])
    environ = {**environ, **dict(word.split("=", 1) for word in words[:command])}
    found = membership(config.hosts, config.host_ordinal, environ, hostname)
    assert (found.count, found.ordinal) == (4, 1)
