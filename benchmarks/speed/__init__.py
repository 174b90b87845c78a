"""Speed of the exact kernel on real candidate pools, against general solvers and heuristics."""
