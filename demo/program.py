"""An ordinary program that does not depend on Quell.

It imports six packages, uses each of them, and prints one line.

Its start makes several thousand lookups of modules and libraries before the first number is
computed; this is the load that Quell reduces. Its output is the same on every run.
"""
import matplotlib
import numpy as np
import pandas as pd
import sympy
from scipy import integrate
from sklearn.linear_model import LinearRegression

matplotlib.use("Agg")  # draw without a display
from matplotlib import pyplot as plt  # noqa: E402  (the choice above must come first)

x = np.linspace(0.0, np.pi, 201)
area = integrate.simpson(np.sin(x), x=x)
table = pd.DataFrame({"x": x, "y": 3.0 * x + 1.0})
slope = LinearRegression().fit(table[["x"]], table["y"]).coef_[0]
t = sympy.Symbol("t")
exact = sympy.integrate(sympy.sin(t), (t, 0, sympy.pi))
figure, axes = plt.subplots()
axes.plot(table["x"], np.sin(x))
lines = len(axes.get_lines())
print(f"area {area:.6f} (exactly {exact}), slope {slope:.6f}, {len(table)} rows, {lines} line drawn")
