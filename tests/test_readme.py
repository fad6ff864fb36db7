"""What the README points to is there."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_tests_behind_the_contract_exist() -> None:
    named = set(re.findall(r"`(test_\w+)`", README))
    sources = "".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))
    assert len(named) > 30
    assert [name for name in sorted(named) if f"def {name}(" not in sources] == []


def test_every_option_of_generate_is_explained() -> None:
    from tests.model.fuzz import options_of

    explained = {"--help", *re.findall(r"--[a-z][a-z-]+", README)}
    assert (
        sorted(option for option in options_of("generate") if option.startswith("--") and option not in explained) == []
    )


def test_files_that_are_linked_exist() -> None:
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / link).exists(), link
