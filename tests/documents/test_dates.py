"""When a document was made, by its title, the name of its file, or its front matter."""

from pathlib import Path

import pytest

from mio_rag import Collection


@pytest.mark.parametrize(
    ("name", "text", "date"),
    [
        ("news.md", "# Newsletter, November 2023\n\nText.", "2023-11"),
        ("news.md", "# Rundbrief Oktober 2023: ein Protokoll\n\nText.", "2023-10"),
        ("news.md", "# Report, Q3 2023\n\nText.", "2023-09"),
        ("news.md", "# Annual report 2023\n\nText.", "2023"),
        ("news.md", "# Report on Vision 2030 and 2040\n\nText.", None),
        ("news.md", "# Report due by March 2024\n\nText.", None),
        ("news.md", "# Thoughts on the flood of March 2021\n\nText.", None),
        ("news.md", "---\ndate: 2024-05\n---\n# News\n\nText.", "2024-05"),
        ("news.md", "---\ndate: 2024\n---\n# News\n\nText.", "2024"),
        ("newsletter-2023-11.md", "Text.", "2023-11"),
        ("newsletter_nov_2023.md", "Text.", "2023-11"),
        ("compte-rendu-mars-2024.md", "Text.", "2024-03"),
        ("11.2023 sales.md", "Text.", "2023-11"),
        ("sales-2023-Q2.md", "Text.", "2023-06"),
        ("budget-FY2023.md", "Text.", "2023"),
        ("price-list-2024.md", "Text.", "2024"),
        ("plan-2024-2026.md", "Text.", None),
        ("season-2010-11.md", "Text.", None),
        ("AMD_2022_10K.md", "Text.", None),
    ],
)
def test_the_date_of_a_document(name: str, text: str, date: str | None, tmp_path: Path) -> None:
    (tmp_path / name).write_text(f"{text}\n", encoding="utf-8")
    (part, *_) = Collection(tmp_path, embedder="tfidf").select("Text", budget=60).parts
    assert part["date"] == date
