"""The computation of all-MiniLM-L6-v2 as an ONNX graph without weights.

``python -m benchmarks.minilm_graph`` writes ``mio_rag/retrieval/minilm.onnx``. It holds the operations
alone (23 KB): the weights are named as in the model's ``model.safetensors`` and are handed to the session,
so that no second copy of them is made, kept or checked. Needs the package ``onnx``; reading the graph does
not.

Source: Wang et al. (MiniLM, NeurIPS 2020); BERT with six layers, the mean over a text's tokens at the end.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mio_rag.errors import require

#: Where the graph is kept.
GRAPH = Path(__file__).parents[1] / "mio_rag" / "retrieval" / "minilm.onnx"

LAYERS, WIDTH, HEADS, INNER = 6, 384, 12, 1536
WORDS, POSITIONS, KINDS = 30522, 512, 2
EPSILON = 1e-12
MASKED = -1e9  # added to the score of padding: its weight underflows to 0


class _Builder:
    """Nodes and tensors of a graph; every method returns the name of what it adds."""

    def __init__(self) -> None:
        self.onnx = require("onnx", "dev", "the graph of the packaged MiniLM")
        self.nodes: list[Any] = []
        self.tensors: dict[str, Any] = {}

    def node(self, operation: str, *inputs: str, **attributes: Any) -> str:
        output = f"{operation}_{len(self.nodes)}"
        self.nodes.append(self.onnx.helper.make_node(operation, inputs, [output], name=output, **attributes))
        return output

    def weight(self, name: str, *shape: int) -> str:
        """A tensor that the session is given."""
        tensor = self.onnx.TensorProto(
            name=name, data_type=self.onnx.TensorProto.FLOAT, dims=shape, data_location="EXTERNAL"
        )
        tensor.external_data.add(key="location", value="given-to-the-session")
        self.tensors[name] = tensor
        return name

    def whole(self, *values: int) -> str:
        """A vector of whole numbers."""
        name = "int_" + "_".join(map(str, values))
        kind = self.onnx.TensorProto.INT64
        self.tensors[name] = self.onnx.helper.make_tensor(name, kind, [len(values)], values)
        return name

    def number(self, value: float) -> str:
        name = f"float_{value}"
        self.tensors[name] = self.onnx.helper.make_tensor(name, self.onnx.TensorProto.FLOAT, [], [value])
        return name

    def linear(self, x: str, name: str, inputs: int, outputs: int) -> str:
        weight, bias = self.weight(f"{name}.weight", outputs, inputs), self.weight(f"{name}.bias", outputs)
        return self.node("Gemm", x, weight, bias, transB=1)

    def normed(self, x: str, name: str) -> str:
        scale, bias = self.weight(f"{name}.weight", WIDTH), self.weight(f"{name}.bias", WIDTH)
        return self.node("LayerNormalization", x, scale, bias, axis=-1, epsilon=EPSILON)


def graph() -> bytes:
    """The graph, serialized.

    Inputs ``ids`` and ``mask`` (1 for tokens, 0 for padding), both int64 of shape (texts, tokens); output
    ``mean``, float32 of shape (texts, 384), not normalized.
    """
    g = _Builder()
    shape = g.node("Shape", "ids")
    rows = g.whole(-1, WIDTH)  # texts and tokens as one axis: every layer but attention works on tokens alone
    by_head = g.node("Concat", shape, g.whole(HEADS, WIDTH // HEADS), axis=0)
    mask = g.node("Cast", "mask", to=g.onnx.TensorProto.FLOAT)
    hidden = g.node("Mul", g.node("Sub", g.number(1.0), mask), g.number(MASKED))
    hidden = g.node("Unsqueeze", hidden, g.whole(1, 2))

    x = g.node("Reshape", _embedded(g, shape), rows)
    for layer in range(LAYERS):
        name = f"encoder.layer.{layer}"
        x = g.normed(
            g.node("Add", _attended(g, x, name, by_head, hidden, rows), x),
            f"{name}.attention.output.LayerNorm",
        )
        inner = g.node("Gelu", g.linear(x, f"{name}.intermediate.dense", WIDTH, INNER))
        x = g.normed(
            g.node("Add", g.linear(inner, f"{name}.output.dense", INNER, WIDTH), x),
            f"{name}.output.LayerNorm",
        )

    x = g.node("Reshape", x, g.node("Concat", shape, g.whole(WIDTH), axis=0))
    shown = g.node("Unsqueeze", mask, g.whole(-1))
    total, count = (
        g.node("ReduceSum", what, g.whole(1), keepdims=0) for what in (g.node("Mul", x, shown), shown)
    )
    helper, proto = g.onnx.helper, g.onnx.TensorProto
    g.nodes.append(helper.make_node("Div", [total, count], ["mean"], name="mean"))
    made = helper.make_graph(
        g.nodes,
        "all-MiniLM-L6-v2",
        [helper.make_tensor_value_info(n, proto.INT64, ["texts", "tokens"]) for n in ("ids", "mask")],
        [helper.make_tensor_value_info("mean", proto.FLOAT, ["texts", WIDTH])],
        list(g.tensors.values()),
    )
    # Operators of ONNX 1.15, which every ONNX Runtime since 1.17 knows.
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    return bytes(model.SerializeToString(deterministic=True))


def _embedded(g: _Builder, shape: str) -> str:
    """Tokens by word, kind (always the first) and position."""
    words = g.weight("embeddings.word_embeddings.weight", WORDS, WIDTH)
    kinds = g.weight("embeddings.token_type_embeddings.weight", KINDS, WIDTH)
    positions = g.weight("embeddings.position_embeddings.weight", POSITIONS, WIDTH)
    length = g.node("Slice", shape, g.whole(1), g.whole(2))
    x = g.node("Add", g.node("Gather", words, "ids"), g.node("Gather", kinds, g.whole(0)))
    x = g.node("Add", x, g.node("Slice", positions, g.whole(0), length, g.whole(0)))
    return g.normed(x, "embeddings.LayerNorm")


def _attended(g: _Builder, x: str, layer: str, by_head: str, hidden: str, rows: str) -> str:
    """Self-attention over the tokens of each text."""

    def head(part: str, order: list[int]) -> str:
        projected = g.linear(x, f"{layer}.attention.self.{part}", WIDTH, WIDTH)
        return g.node("Transpose", g.node("Reshape", projected, by_head), perm=order)

    query, key, value = head("query", [0, 2, 1, 3]), head("key", [0, 2, 3, 1]), head("value", [0, 2, 1, 3])
    scores = g.node("Mul", g.node("MatMul", query, key), g.number((WIDTH // HEADS) ** -0.5))
    weights = g.node("Softmax", g.node("Add", scores, hidden), axis=-1)
    mixed = g.node("Transpose", g.node("MatMul", weights, value), perm=[0, 2, 1, 3])
    return g.linear(g.node("Reshape", mixed, rows), f"{layer}.attention.output.dense", WIDTH, WIDTH)


if __name__ == "__main__":
    GRAPH.write_bytes(graph())
