"""Many questions side by side: each selection of a batch driven through the programs that it asks for."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence

from mio_rag.errors import MioRagError
from mio_rag.formulations.program import SelectionProgram
from mio_rag.selection.result import Selection
from mio_rag.solvers.many import Executor, solve_as_completed
from mio_rag.solvers.result import SolveOptions, SolveResult

__all__ = ["Steps", "finish_many"]

#: A selection in the making: hands out programs, is sent their results, returns the selection.
Steps = Generator[SelectionProgram, SolveResult, Selection]


def finish_many(
    steps: Sequence[Steps],
    solver: str,
    options: SolveOptions,
    *,
    workers: int,
    executor: Executor,
    progress: Callable[[int], None] | None,
) -> list[Selection | MioRagError]:
    """The selection, or the error, of each of `steps`, in order; see `Selector.select_many`."""
    found: dict[int, Selection | MioRagError] = {}
    spent = [0.0] * len(steps)  # the time limit is a question's, however many programs it takes

    def advance(k: int, result: SolveResult | None) -> Iterable[tuple[int, SelectionProgram]]:
        """The next program of question k; nothing, and its outcome noted, where there is none."""
        if result is not None:
            spent[k] += result.wall_seconds
        try:
            program = next(steps[k]) if result is None else steps[k].send(result)
        except StopIteration as done:
            found[k] = done.value
        except MioRagError as error:
            found[k] = error
        else:
            return [(k, program)]
        if progress is not None:
            progress(1)
        return []

    # Built as the workers need them, by this thread.
    tasks: Iterable[tuple[int, SelectionProgram]] = (
        task for k in range(len(steps)) for task in advance(k, None)
    )
    while True:
        solved = solve_as_completed(
            tasks, solver, lambda k: options.after(spent[k]), workers=workers, executor=executor
        )
        # Another round for those whose context block came out too large.
        tasks = [task for k, result in solved for task in advance(k, result)]
        if not tasks:
            return [found[k] for k in range(len(steps))]
