"""DSPy: a program whose context is chosen by mio-rag.

pip install "mio-rag[dspy,retrieval]"
python docs/examples/dspy_rag.py
"""

import dspy
from dspy.retrievers import EmbeddingsWithScores
from dspy.utils import DummyLM

from mio_rag import load_dataset
from mio_rag.adapters.dspy import SelectionModule
from mio_rag.retrieval import TfidfEmbedder

data = load_dataset("demo")
model = TfidfEmbedder()  # stands for your dspy.Embedder; this one needs no download
model.fit([p.text for p in data.passages])


class Answer(dspy.Module):
    """Retrieve, choose, answer."""

    def __init__(self):
        super().__init__()
        retriever = EmbeddingsWithScores([p.text for p in data.passages], model.encode, k=30)
        self.context = SelectionModule(retriever, budget=256)
        self.answer = dspy.Predict("context: list[str], question -> answer")

    def forward(self, question):
        found = self.context(question)
        said = self.answer(context=found.passages, question=question)
        return dspy.Prediction(answer=said.answer, found=found)


# DSPy's predictors need a language model; replace this scripted one with yours.
dspy.configure(lm=DummyLM([{"answer": "the Menai Suspension Bridge"}]))

result = Answer()(
    "Which suspension bridge was opened first, the Menai Suspension Bridge or the Clifton Suspension Bridge?"
)
for place, score, notes in zip(result.found.indices, result.found.scores, result.found.notes, strict=True):
    title = data.passages[place].title
    print(f"{notes['rank']}. {title}, score {score:.3f}: {notes['reason']}")
print(result.found.report["certificate"]["text"])
