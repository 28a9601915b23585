"""The engine's formulas, with gradients."""
