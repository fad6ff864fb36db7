import json
from pathlib import Path

import pytest

from specd.bench.workloads import first_of_each, load_workloads, read_prompts
from specd.errors import UsageError


def test_our_own_cover_what_people_do() -> None:
    measured = [each for each in load_workloads().values() if each.bench_tokens]
    assert [each.category for each in measured] == [
        *("chat", "story", "code", "edit", "fix", "summary", "question", "extraction", "translation", "maths"),
        "conversation",
    ]
    assert len(load_workloads()["conversation"].turns) == 3
    assert load_workloads()["edit"].predicted in load_workloads()["edit"].turns[0]


def test_json_lines_in_the_form_of_spec_bench(tmp_path: Path) -> None:
    file = tmp_path / "questions.jsonl"
    lines = [
        {"question_id": 81, "category": "writing", "turns": ["Write.", "Again."]},
        {"question_id": 82, "category": "writing", "turns": ["Write more."], "reference": []},
        {"turns": ["Alone."]},
    ]
    file.write_text("\ufeff" + "\n\n".join(map(json.dumps, lines)) + "\n", encoding="utf-8")
    first, second, third = read_prompts(file, 99)
    assert (first.category, first.name, first.turns, first.bench_tokens) == ("writing", "81", ("Write.", "Again."), 99)
    assert second.name == "82"
    assert (third.category, third.turns) == ("prompts", ("Alone.",))


def test_plain_text_has_a_prompt_per_line(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("One prompt.\n\n  Another one.  \n")
    assert [(each.category, each.turns) for each in read_prompts(file, 8)] == [
        ("mine", ("One prompt.",)),
        ("mine", ("Another one.",)),
    ]


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.jsonl", '{"turns": ["x"]}\n{"turns": []}\n', 'a.jsonl line 2: "turns" must be a list of texts, not []'),
        ("a.jsonl", '{"turns": "x"}\n', '"turns" must be a list of texts'),
        ("a.jsonl", '{"turns": ["x", 3]}\n', '"turns" must be a list of texts'),
        ("a.jsonl", '{"prompt": "x"}\n', 'line 1 is not an object with "turns"'),
        ("a.jsonl", "[1]\n", 'line 1 is not an object with "turns"'),
        ("a.txt", '{"turns": ["x"]}\nhello\n', 'line 2 is not an object with "turns"'),
        ("a.txt", " \n", "has no prompts in it"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UsageError) as error:
        read_prompts(tmp_path / name, 8)
    assert words in str(error.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_prompts(tmp_path / "none.jsonl", 8)


def test_the_first_of_each_category(tmp_path: Path) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text("".join(json.dumps({"category": c, "turns": [c + str(i)]}) + "\n" for i in range(3) for c in "ab"))
    assert [each.turns[0] for each in first_of_each(read_prompts(file, 8), 2)] == ["a0", "b0", "a1", "b1"]
