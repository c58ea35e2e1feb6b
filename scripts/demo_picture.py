"""The demo's picture: times by phase, latencies beside a VACUUM, and a table that becomes small while others use it."""

from pathlib import Path

from matplotlib import pyplot

from drawing import STYLE

COLORS = ("#b8b8b8", "#3b6fb6", "#e08a3c", "#5aa469", "#b65f9e", "#8c6d4f", "#d9c24a")
MOST_DOTS = 8000


def draw(file: Path, footnote: str, contenders: list, phases: tuple[str, ...], runs: list, shrunk) -> None:
    """Write the picture to `file`."""
    with pyplot.rc_context(STYLE):
        figure, panels = pyplot.subplots(2, 2, figsize=(12, 8), layout="constrained")
        panels[1][1].sharey(panels[1][0])
        _draw_times(panels[0][0], contenders, phases)
        _draw_size(panels[0][1], shrunk)
        highest = max((ms for run in runs for _, ms in run.transactions), default=1)
        for panel, run in zip(panels[1], runs):
            _draw_latencies(panel, run, highest)
        figure.supxlabel(footnote, fontsize=7, color="#707070")
        file.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(file, dpi=130)
        pyplot.close(figure)


def _draw_times(panel: pyplot.Axes, contenders: list, phases: tuple[str, ...]) -> None:
    """Draw a bar for each contender, from phase to phase."""
    shown = [phase for phase in phases if any(contender.phase_seconds.get(phase) for contender in contenders)]
    for position, contender in enumerate(contenders):
        left = 0.0
        scale = contender.seconds / (sum(contender.phase_seconds.values()) or 1)  # the samples don't add up to the whole
        for phase in shown:
            width = contender.phase_seconds.get(phase, 0) * scale
            panel.barh(position, width, left=left, color=COLORS[phases.index(phase)], label=phase if position == 0 else None)
            left += width
        ratio = contenders[0].seconds / contender.seconds
        panel.annotate(f"{contender.seconds:.2f} s, {ratio:.2f} ×", (contender.seconds, position), (4, 0), va="center",
                       textcoords="offset points")  # fmt: skip
    panel.set_yticks(range(len(contenders)), [contender.name.replace(", ", "\n") for contender in contenders])
    panel.invert_yaxis()
    panel.set_xlim(0, 1.3 * max(contender.seconds for contender in contenders))
    panel.set_xlabel("seconds")
    panel.grid(axis="y", visible=False)
    panel.set_title("VACUUM, nobody else at work", loc="left")
    if shown:
        panel.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=3)


def _draw_latencies(panel: pyplot.Axes, run, highest: float) -> None:
    """Draw each transaction as a dot, and the time of the VACUUM as a band."""
    step = max(1, len(run.transactions) // MOST_DOTS)
    dots = [(begin - run.begin, ms) for begin, ms in run.transactions[::step]]
    panel.axvspan(0, run.end - run.begin, color="#3b6fb6", alpha=0.15, linewidth=0)
    panel.scatter([begin for begin, _ in dots], [max(ms, 0.01) for _, ms in dots], s=2, color="#20639b", alpha=0.5, linewidths=0)
    if run.usual_ms:
        panel.axhline(run.usual_ms, color="#ed553b", linewidth=1, label=f"95 % without VACUUM: {run.usual_ms:.2f} ms")
        panel.legend(loc="upper right")
    panel.set_yscale("log")
    panel.set_ylim(top=highest * 1.5)
    panel.set_xlabel("seconds since VACUUM began" + ("" if run.finished else " (broken off)"))
    panel.set_ylabel("milliseconds of a transaction")
    panel.set_title(f"{run.name}: 95 % below {run.before(95):.2f} ms before, {run.during(95):.2f} ms meanwhile", loc="left")


def _draw_size(panel: pyplot.Axes, shrunk) -> None:
    """Draw the size of the table with its indexes, and what pgbench did meanwhile."""
    panel.axvspan(0, shrunk.end - shrunk.begin, color="#3b6fb6", alpha=0.15, linewidth=0)
    panel.plot([moment - shrunk.begin for moment, _ in shrunk.sizes], [size / 2**20 for _, size in shrunk.sizes], color="#3b6fb6")
    panel.set_ylim(bottom=0)
    panel.set_xlabel("seconds since VACUUM (FULL INPLACE) began")
    panel.set_ylabel("MB, table and indexes", color="#3b6fb6")
    panel.set_title("VACUUM (FULL INPLACE) beside pgbench", loc="left")
    ends = [begin + ms / 1000 - shrunk.begin for begin, ms in shrunk.transactions]
    if ends:
        first, last = int(min(ends)) + 1, int(max(ends))
        counts = [sum(1 for end in ends if second <= end < second + 1) for second in range(first, last)]
        rate = panel.twinx()
        rate.step(range(first, last), counts, where="post", color="#e08a3c", linewidth=1)
        rate.set_ylim(0, 1.15 * max(counts, default=1))
        rate.set_ylabel("transactions a second", color="#e08a3c")
        rate.grid(visible=False)
