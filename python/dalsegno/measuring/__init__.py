"""Measures a machine before traffic: what `dalsegno profile run` does.

`grid` has the prompts, `running` the processes. The engine is a program of its engine's package.
"""
