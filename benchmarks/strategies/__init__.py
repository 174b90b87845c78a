"""What adaptive search is worth: strategies alone and together, bandits against fixed sets and the oracle."""
