"""Controllers on real questions with a real model: quality against cost, and what calibration changes."""
