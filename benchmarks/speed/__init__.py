"""How fast is the exact kernel? Real candidate pools, against general solvers and heuristics."""
