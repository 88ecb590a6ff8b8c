"""The picture: how the answers approach what theory says."""

from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from demonstration.answers import Answers, Mean
from montecarlo import simulation

BLUE, RED, INK, PALE = "#2a6f97", "#d1495b", "#22313f", "#dfe6ec"


def draw(file: Path, answers: Answers) -> Path:
    """Write the picture as PNG."""
    figure = Figure(figsize=(13, 7), dpi=130, layout="constrained")
    price, walk, years = _panels(figure)

    _convergence(price, answers.option_value)
    _label(price, "What is an option on its average price worth?", "simulated paths", "value of the option")

    _convergence(walk, answers.exit_time)
    question = f"When does a walk leave its corridor of ±{simulation.CORRIDOR}?"
    _label(walk, question, "simulated walks", "mean number of steps")

    _years(years, answers)
    _label(years, "What may a year cost?", "profit after a year (price today: 100)", "density")

    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file)
    return file


def _panels(figure: Any) -> tuple[Any, Any, Any]:
    figure.suptitle("Three questions about a share", fontsize=17, fontweight="bold", color=INK)
    figure.get_layout_engine().set(w_pad=0.1, h_pad=0.1, wspace=0.04, hspace=0.06)
    panels = figure.subplot_mosaic([["price", "walk"], ["price", "years"]], width_ratios=[1.4, 1])
    return panels["price"], panels["walk"], panels["years"]


def _convergence(panel: Any, answer: Mean) -> None:
    last = answer.last
    samples = [each.samples for each in answer.estimates]
    means = [each.mean for each in answer.estimates]
    low = [each.mean - each.margin for each in answer.estimates]
    high = [each.mean + each.margin for each in answer.estimates]
    band = {"color": BLUE, "alpha": 0.18, "linewidth": 0}
    panel.fill_between(samples, low, high, **band, label="95 % confidence band")
    panel.plot(samples, means, color=BLUE, linewidth=1.8, label=f"estimate: {last.mean:.3f} ± {last.margin:.3f}")
    _true_value(panel.axhline, answer.true_value, f"true value: {answer.true_value:.3f}")
    panel.set_xscale("log")  # ten times the work for a third of the error: the band narrows evenly
    panel.set_xlim(samples[0], samples[-1])
    panel.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    panel.minorticks_off()
    panel.legend(frameon=False, loc="upper right")


def _years(panel: Any, answers: Answers) -> None:
    profits, risk = answers.profits, answers.risk
    low, high = min(profits), max(profits)
    bins = max(10, min(60, len(profits) // 20))
    panel.hist(profits, bins=bins, density=True, color=BLUE, alpha=0.3, label=f"{len(profits):,} recorded years")
    grid = [low + (high - low) * step / 400 for step in range(401)]
    density = [simulation.profit_density(profit) for profit in grid]
    panel.plot(grid, density, color=INK, linewidth=1.3, label="theory")
    rare = [profit < -risk["value"] for profit in grid]
    panel.fill_between(grid, density, where=rare, color=BLUE, alpha=0.6, linewidth=0, label="one year in twenty")
    panel.axvspan(-risk["high"], -risk["low"], color=BLUE, alpha=0.18, linewidth=0)
    panel.axvline(-risk["value"], color=BLUE, linewidth=1.8, label=f"estimate: −{risk['value']:.2f}")
    _true_value(panel.axvline, -answers.true_risk, f"true value: −{answers.true_risk:.2f}")
    panel.set_xlim(low, high)
    panel.legend(frameon=False, loc="upper right", fontsize=9)


def _true_value(line: Any, at: float, label: str) -> None:
    line(at, color=RED, linewidth=1.5, linestyle="--", label=label)


def _label(panel: Any, title: str, across: str, up: str) -> None:
    panel.set_title(title, loc="left", fontsize=12, fontweight="bold", color=INK)
    panel.set_xlabel(across, color=INK)
    panel.set_ylabel(up, color=INK)
    panel.tick_params(colors=INK)
    panel.grid(color=PALE, linewidth=0.8)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
