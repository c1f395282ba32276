"""Sentences in other languages: catalogues are whole and mean one thing, and panels speak them."""

from functools import partial

import pytest

from bigtrain_lab import Panel
from bigtrain_lab.core import said
from tools import sentences

CHINESE = said.catalogue("zh")


@pytest.mark.parametrize("wing", sentences.WINGS)
def test_each_sentence_has_its_translation(wing):
    """Of the files that tools/sentences.py names: all that panels, labs, pictures and the player
    say, the refusals of settings, and of exercises what checks say, the usual mistakes, hints,
    and names of what is compared. The scenes in which that was seen stay English."""
    assert len(sentences.spoken(wing)) > 50 and sentences.lacking("zh", wing) == {}


def test_each_template_is_told_by_its_own_translation():
    """With names and numbers in its holes, whatever other templates there are."""
    filled = partial(said.HOLE.sub, lambda hole: f"{hole[2]}7" if hole[1] else f"name{hole[2]}")
    assert {text: said.translated(filled(text), "zh") for text in CHINESE} == {
        text: filled(told) for text, told in CHINESE.items()
    }


@pytest.mark.parametrize(
    "text,told",
    [
        ("Foo bar of baz.", "Foo bar of baz."),
        ("x.py: no such thing", "x.py: no such thing"),
        (
            "Rank 0 runs 0F1 twice: each action runs once. Foo bar!",
            "Rank 0 运行 0F1 两次：每个动作只运行一次。Foo bar!",
        ),
        (
            "tokens (bytes of text) in a sample (tokens), 4 to 8",
            "一个样本的词元数（文本字节）（词元），4 到 8",
        ),
        ("weights 12 MB, activations 3 MB", "权重 12 MB，激活值 3 MB"),
    ],
)
def test_holes_and_lists_are_translated_in_turn_and_what_is_not_known_stays(text, told):
    assert said.translated(text, "zh") == told


def test_a_browser_is_told_the_words_of_a_panel_and_a_program_reads_english(monkeypatch):
    monkeypatch.setenv("BIGTRAIN_LANGUAGE", "zh")
    shown = Panel("pipeline")
    shown.picture.rivals.html = "<b>All predicted.</b>"
    control, why, run, lenses, rivals = (
        each.get_state()
        for each in (
            shown.controls["micro_batches"],
            shown.lead,
            shown.run_button,
            shown.picture.lenses,
            shown.picture.rivals,
        )
    )
    assert (control["description"], control["tooltip"], run["description"], rivals["html"]) == (
        "微批数",
        "一个批切成的份数，1 到 32（--micro-batches）",
        "在 4 个 rank 上运行",
        "<b>全部是预测。</b>",
    )
    assert "1f1b 有 27.3% 的时间空闲" in why["value"] and "时间线" in lenses["_options_labels"]
    assert shown.run_button.description.endswith("ranks") and (
        "1f1b idles 27.3%" in shown.lead.value and "a batch of" in shown.foot.why.value
    )


@pytest.mark.parametrize(
    "locale,lang,asked,found",
    [
        ("zh_CN", "C", "", "zh"),
        ("default", "zh_CN.UTF-8", "", "zh"),
        ("default", "fr_FR.UTF-8", "", ""),
        ("zh_CN", "zh_CN.UTF-8", "en", ""),
    ],
)
def test_the_language_is_asked_for_or_jupyterlab_s_or_the_system_s(
    monkeypatch, tmp_path, locale, lang, asked, found
):
    place = "lab/user-settings/@jupyterlab/translation-extension/plugin.jupyterlab-settings"
    (tmp_path / place).parent.mkdir(parents=True)
    (tmp_path / place).write_text(f'{{ "locale": "{locale}" }}', encoding="utf-8")
    monkeypatch.setattr(
        said.os,
        "environ",
        {"JUPYTER_CONFIG_DIR": str(tmp_path), "LANG": lang, "BIGTRAIN_LANGUAGE": asked},
    )
    said.of_jupyterlab.cache_clear()
    assert said.language() == found
