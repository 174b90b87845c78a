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
        ("fees-2025.md", "Text.", "2025"),
        ("opening hours Christmas 2025.md", "Text.", "2025"),
        ("2025_menu.md", "Text.", "2025"),
        ("fees.html", "<h1>Shelter fees 2025</h1><p>Text.</p>", "2025"),
        ("vision-2020.md", "Text.", None),
        ("plans.md", "# Mobility 2090\n\nText.", None),
        ("flood-1995.md", "Text.", None),
        ("history of the 2002 flood.md", "Text.", None),
        ("the flood of 2002.md", "Text.", None),
        ("ISO 9001 2015.md", "Text.", None),
        ("mail.txt", "From: Ann\nDate: Mon, 18 May 2026 09:12\nSubject: Text\n\nText.\n", "2026-05-18"),
        *(
            ("rules.md", f"# Rules\n\n{stated} 2026\n\nText.", "2026-03-10")
            for stated in (
                "Approved by the board on 10 March",
                "Beschlossen am 10. März",
                "Publié le 10 mars",
                "Fecha: 10 de marzo de",
                "Aggiornato il 10 marzo",
                "Bijgewerkt op 10 maart",
                "Обновлено: 10 марта",
                "Дата: 10. 3.",
            )
        ),
        *(
            (
                "chat.txt",
                f"[{one}, 07:58] Ann: Two of the cats sneeze.\n[{two}, 08:03] Ben: Text text.\n",
                day,
            )
            for one, two, day in (
                ("03/06/2026", "05/06/2026", "2026-06-05"),
                ("06/03/26", "06/05/26", "2026-06-05"),
                ("06/13/2026", "06/13/2026", "2026-06-13"),
                ("2026-06-03", "2026-06-05", "2026-06-05"),
                ("03/06/2026", "03/06/2026", None),
            )
        ),
        ("plan-2024-2026.md", "Text.", None),
        ("season-2010-11.md", "Text.", None),
        ("AMD_2022_10K.md", "Text.", None),
    ],
)
def test_the_date_of_a_document(name: str, text: str, date: str | None, tmp_path: Path) -> None:
    (tmp_path / name).write_text(f"{text}\n", encoding="utf-8")
    (part, *_) = Collection(tmp_path, embedder="tfidf").select("Text", budget=60).parts
    assert part["date"] == date
