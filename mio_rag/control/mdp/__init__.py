"""The controller that retrieves, reasons or stops: its decision process solved ahead of time (`plan.py`), the
policies and the loop that runs them, the parameters from recorded runs, the structure of the solution.
"""
