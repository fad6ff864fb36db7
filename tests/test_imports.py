"""The direction of imports, read from the sources."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import specd

ROOT = Path(specd.__file__).parent
ALLOWED = {  # package -> what of specd it may import
    "errors": set(),
    "decoding": {"errors"},
    "drafting": {"decoding", "errors"},
    "grammars": {"decoding", "errors"},
    "llama": {"decoding", "errors"},
    "models": {"decoding", "errors"},
    "chat": {"decoding", "errors", "drafting", "models", "llama", "terminal"},
    "bench": {"decoding", "errors", "drafting", "models", "llama", "terminal"},
    "terminal": {"decoding", "errors"},
    "cli": {"decoding", "errors", "drafting", "grammars", "models", "llama", "chat", "bench", "terminal"},
}
FILES = sorted(ROOT.rglob("*.py"))


def imports_of(file: Path) -> set[str]:
    """Full names of the modules that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def part_of(file: Path) -> str:
    return file.relative_to(ROOT).with_suffix("").parts[0]


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(ROOT)))
def test_imports_go_downwards(file: Path) -> None:
    part = part_of(file)
    for name in imports_of(file):
        top, _, rest = name.partition(".")
        if top == "specd" and rest.partition(".")[0] not in ("__version__", part, ""):
            other = rest.partition(".")[0]
            assert part in ("__main__", "__init__") or other in ALLOWED[part], f"{part} imports {other}"
        if top == "llama_cpp":
            assert part == "llama", f"only specd.llama may import llama_cpp, not {file}"
        if part == "decoding":
            assert top in {"specd", "numpy", *sys.stdlib_module_names}, f"decoding imports {top}"


def test_the_rule_has_something_to_check() -> None:
    assert len(FILES) > 30
    assert any("llama_cpp" in name for name in imports_of(ROOT / "llama" / "library.py"))


@pytest.mark.parametrize("arguments", [["--help"], ["models", "list"], ["generate", "--help"]])
def test_commands_without_computing_do_not_load_llama_cpp(arguments: list[str]) -> None:
    script = (
        "import sys; sys.argv = ['specd', *sys.argv[1:]]\n"
        "from specd.cli.app import run\n"
        "assert run() == 0\n"
        "assert 'llama_cpp' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script, *arguments], check=True, stdout=subprocess.DEVNULL)
