"""Chats, logs and records in plain text: each entry is a unit of its own."""

from pathlib import Path

import pytest

from mio_rag import Collection

CHAT = """[2024-05-02 09:14] Mia: Is the release still planned for Thursday?
[2024-05-02 09:16] Tom: No, it is moved to 9 May, as the payment tests fail.
[2024-05-02 09:20] Priya: The sandbox has a timeout, which I look at
now, and the log as well.
"""
LOG = "2024-01-12 P300 no. 114: seal replaced, 3 h\n2024-04-03 P300 no. 114: oil changed, 1 h\n"
RECORDS = "\n\n".join(
    f"Name: {name}\nPhone: 0170 {phone}\nRole: {role}"
    for name, phone, role in [("Lena Vogt", 1111, "first aid"), ("Omar Said", 2222, "fire warden")]
)
HOURS = "Visiting hours\n\nWard A: 14:00 to 19:00\nWard B: 15:00 to 18:00\nWard C: by arrangement\n"


@pytest.mark.parametrize(
    ("text", "question", "read"),
    [
        (CHAT, "Which tests fail?", "\n[2024-05-02 09:16] Tom: No, it is moved to 9 May"),
        (CHAT, "Which timeout has the sandbox?", "which I look at now, and the log as well."),
        (LOG, "When was the oil of pump 114 changed?", "\n2024-04-03 P300 no. 114: oil changed, 1 h"),
        (RECORDS, "What is the phone number of the fire warden?", "Omar Said\nPhone: 0170 2222\nRole: fire"),
        (HOURS, "When can I visit ward B?", "\nWard B: 15:00 to 18:00"),
    ],
)
def test_an_entry_is_read_by_itself(text: str, question: str, read: str, tmp_path: Path) -> None:
    (tmp_path / "entries.txt").write_text(text, encoding="utf-8")
    assert read in Collection(tmp_path, embedder="minilm").select(question, budget=45).context
