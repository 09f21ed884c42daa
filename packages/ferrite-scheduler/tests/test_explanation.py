"""Explanations, the text of schedules, and the command line."""

from __future__ import annotations

import json

import pytest

from checks import APART
from ferrite_ir import parse_graph
from ferrite_ir.language.graph import Origin
from ferrite_scheduler import explain, schedule
from ferrite_scheduler.__main__ import main

TEXT = """
graph @f(x: f32[1024, 1024], w: f32[64]) -> (y, u, e, q) {
  m: f32[1024]       = reduce max [i < 1024 | j < 1024] x[i, j]
  y: f32[1024, 1024] = loop [i < 1024, j < 1024] sub(x[i, j], m[i])
  u: f32[64]         = loop [i < 64] exp(w[i])
  e: f32[1024]       = extern aten.clone.default(m)
  k: f32[1024]       = loop [i < 1024] exp(m[i])
  q: f32[1024]       = loop [i < 1024] add(k[i], e[-i + 1023])
}"""


@pytest.fixture(scope="module")
def found():
    return schedule(parse_graph(TEXT), policy=APART)


def test_together_says_what_it_saves(found):
    answer = explain(found, "m", "y")
    assert "together in kernel 0" in answer
    assert "saves memory traffic (bytes " in answer


def test_apart_names_the_rule(found):
    assert "F09" in explain(found, "m", "q") or "F09" in explain(found, "y", "q")


def test_apart_without_a_shared_buffer_says_so(found):
    assert "they share no buffer" in explain(found, "u", "y")


def test_library_calls_are_named(found):
    assert "extern call aten.clone.default" in explain(found, "e", "y")


def test_one_definition_and_unknown_names(found):
    assert explain(found, "m", "m").endswith("one definition")
    with pytest.raises(KeyError, match="graph input"):
        explain(found, "x", "y")
    with pytest.raises(KeyError, match="no value"):
        explain(found, "nothing", "y")


def test_origins_are_quoted():
    from dataclasses import replace

    graph = parse_graph(TEXT)
    origin = Origin("aten.amax", "", "model.py:7")
    definitions = tuple(replace(definition, origins=(origin,)) for definition in graph.definitions)
    answer = explain(schedule(replace(graph, definitions=definitions)), "m", "y")
    assert "aten.amax (model.py:7)" in answer


def test_kernel_names_come_from_source_operations():
    from dataclasses import replace

    graph = parse_graph(TEXT)
    origin = Origin("aten.amax.default", "", "model.py:7")
    definitions = tuple(replace(definition, origins=(origin,)) for definition in graph.definitions)
    names = [kernel.name for kernel in schedule(replace(graph, definitions=definitions), policy=APART).kernels]
    assert "persistent_amax" in names
    assert all(name.isidentifier() for name in names)


def test_text_shows_kernels_and_steps(found):
    text = str(found)
    for part in (
        "kernel 0 persistent_max",
        "read x: f32[1024, 1024]",
        "at [x0, r0] stores y",
        "y = alloc f32[1024, 1024]",
        "launch 0(",
        "e: f32[1024] = extern aten.clone.default(m)",
        "free x",
        "return y, u, e, q",
    ):
        assert part in text


def test_command_line_prints_schedules_and_explanations(tmp_path, capsys):
    file = tmp_path / "f.fir"
    file.write_text(TEXT)
    target = tmp_path / "target.json"
    target.write_text(json.dumps({"name": "small", "processors": 8}))
    assert main([str(file), "--decisions", "--target", str(target)]) == 0
    printed = capsys.readouterr().out
    assert "schedule @f" in printed
    assert "# m + y: fused" in printed
    assert main([str(file), "--as-is", "--explain", "m", "y"]) == 0
    assert "together" in capsys.readouterr().out
    assert main([str(file), "--decisions", "--json"]) == 0
    (graph,) = json.loads(capsys.readouterr().out)
    assert any(decision.startswith("m + y: fused") for decision in graph["decisions"])
    file.write_text("graph @f(")
    assert main([str(file)]) == 1
    assert f"{file}:1:10: expected a value" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [([], 2, "file"), (["missing"], 2, "missing cannot be read"), (["FOLDER"], 2, "Is a directory"),
     (["FILE", "--target", "missing"], 2, "missing cannot be read"), (["FILE", "--target", "FILE"], 1, "no JSON"),
     (["FILE", "--target", "FACTS"], 2, "did you mean 'warp_size'"), (["FILE", "--target", "LIST"], 2, "JSON object"),
     (["BINARY"], 1, "no text in UTF-8"), (["FILE", "--explain", "m", "nobody"], 1, "nobody")],
)  # fmt: skip
def test_command_line_refuses_in_a_line(arguments, status, said, tmp_path, capsys):
    contents = {"FILE": TEXT.encode(), "BINARY": b"\x7fELF\xff", "FACTS": b'{"warp_sise": 32}', "LIST": b"[]"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    given = [str(tmp_path / each) if each in contents else each for each in arguments]
    given = [str(tmp_path) if each == "FOLDER" else each for each in given]
    assert main(given) == status
    assert said in capsys.readouterr().err
    assert main([*given, "--json"]) == status
    assert json.loads(capsys.readouterr().out)["error"]["status"] == status


def test_command_line_has_a_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("ferrite-scheduler ")


def test_unknown_target_facts_are_refused():
    from ferrite_scheduler import Target

    with pytest.raises(ValueError, match="warps"):
        Target.from_mapping({"warps": 3})


@pytest.mark.parametrize("name", ["Policy", "Target"])
def test_facts_and_thresholds_are_checked_however_they_are_given(name):
    import ferrite_scheduler

    kind = getattr(ferrite_scheduler, name)
    for wrong in (None, [1], 3):
        with pytest.raises(ValueError, match="they are a mapping"):
            kind.from_mapping(wrong)
    field = {"Policy": "max_kernel_ops", "Target": "processors"}[name]
    for value in (0, -1, True, "8", None, float("nan"), 1.5):
        with pytest.raises(ValueError, match=field):
            kind(**{field: value})
