"""The report: one HTML file that needs nothing else, drawn from a Record."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from typing import Any

from moerl_local.demo import figures
from moerl_local.demo.plan import TITLES
from moerl_local.demo.record import CONTROLLER, Obj, Record, seconds_between

_WHAT = {
    "trainer": "GRPO on the policy, checkpoints",
    "rollout": "engine and driver generate",
    "reward": "scores answers",
    "environment": "checks answers, gives the reward",
    "buffer": "Redis: leases, samples, versions",
}


def render(record: Record) -> str:
    """The page as HTML."""
    style = Path(__file__).with_name("style.css").read_text()
    status = record.job.get("status", {})
    meta = record.job.get("metadata", {})
    state = str(status.get("display", {}).get("state", "unknown"))
    sections = (
        ("What ran", _roles(record)),
        ("Reward and exact match", _curves(record)),
        ("What it learned", _evaluation(record)),
        ("Timeline", _timeline(record)),
        ("Conditions", _conditions(record, status)),
        ("Node groups", _node_groups(record)),
        ("Transport", _transport(status)),
        ("Events", _events(record)),
        ("Steps of the demo", _steps(record)),
        ("Versions and machine", _pairs({**record.versions, **record.machine})),
    )
    body = "".join(f"<section><h2>{escape(title)}</h2>{content}</section>" for title, content in sections if content)
    name = f"{meta.get('namespace', '')}/{meta.get('name', '')}"
    css = {"Complete": "good", "Failed": "bad"}.get(state, "")
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(name)} · {escape(state)}</title><style>{style}</style></head><body><main>"
        f'<header><h1>{escape(name)} <span class="pill {css}">{escape(state)}</span></h1>'
        f"<p>{_headline(record)}</p></header>{_tiles(record, status)}{body}"
        f"<footer>Drawn by moerl demo from record.json beside this page; every figure on it was observed in this run "
        f"({escape(record.started)}).</footer></main></body></html>\n"
    )


def _headline(record: Record) -> str:
    algorithm = record.job.get("spec", {}).get("algorithm", {})
    dataset = record.job.get("spec", {}).get("storage", {}).get("dataset", "")
    return escape(
        f"{algorithm.get('type', '')} on {dataset}: a tiny Qwen3-MoE learned in real pods on one machine, "
        f"under a MoERLJob that the operator ({record.operator_mode}) took from apply to the end."
    )


def _tiles(record: Record, status: Obj) -> str:
    applied = record.applied or record.started
    tiles: list[tuple[str, str]] = []
    if record.evaluation:
        before, after = record.evaluation.get("before"), record.evaluation["exactMatch"]
        tiles.append(
            (f"{after:.0%}", f"held-out exact match, greedy{f' ({before:.0%} before)' if before is not None else ''}")
        )
    display = status.get("display", {})
    if display.get("iteration"):
        tiles.append((display["iteration"], "iterations"))
    if record.report.get("reward") is not None:
        tiles.append((f"{record.report['reward']:.2f}", "training reward at the end"))
    if record.report.get("samplesPerSecond") is not None:
        tiles.append((f"{record.report['samplesPerSecond']:.0f}", "samples per second"))
    if record.finished:
        tiles.append((figures.clock(seconds_between(applied, record.finished)), "from apply to the end"))
    tiles.append((str(status.get("restarts", 0)), "restarts"))
    return (
        '<div class="tiles">'
        + "".join(f"<div><b>{escape(value)}</b><span>{escape(label)}</span></div>" for value, label in tiles)
        + "</div>"
    )


def _roles(record: Record) -> str:
    groups = {group["role"]: group for group in _latest_groups(record)}
    boxes = []
    for role, what in _WHAT.items():
        pods = sorted(
            (pod for pod in record.pods.values() if pod.get("role") == role), key=lambda pod: str(pod["created"])
        )
        if not pods:
            continue
        mine = [group for key, group in groups.items() if key == role or key == pods[0].get("pool")]
        shown = [(_short(pod["name"], record), _pod_css(pod), _pod_state(pod)) for pod in pods[:6]]
        if len(pods) > 6:
            shown.append((f"and {len(pods) - 6} more", "", ""))
        group = mine[0]["name"] if mine else ""
        boxes.append(figures.Box(role, what, group, shown))
    node = next((str(pod["node"]) for pod in record.pods.values() if pod.get("node")), "")
    return (
        figures.roles(boxes, node=f"real node {node}: every node group of instance type “local” is joined by it")
        if boxes
        else ""
    )


def _short(name: str, record: Record) -> str:
    short = name.removeprefix(f"{record.job.get('metadata', {}).get('name', '')}-")
    return short if len(short) <= 24 else short[:23] + "…"


def _pod_css(pod: Obj) -> str:
    # 143 is how a process ends that was told to: at the job's end nothing went wrong.
    if pod.get("exit_code") not in (None, 0, 143) or (pod.get("phase") == "Failed" and pod.get("exit_code") is None):
        return "bad"
    return "good" if pod.get("ready") or pod.get("exit_code") == 0 else "wait"


def _pod_state(pod: Obj) -> str:
    ended = f", exit {pod['exit_code']} {pod.get('reason', '')}" if pod.get("exit_code") is not None else ""
    return f"{pod.get('phase', '')}{ended}, containers {', '.join(pod.get('containers', []))}, {pod.get('ip', '')}"


def _curves(record: Record) -> str:
    exact = [(float(x), y) for x, y in record.exact_match]
    series = [figures.Series("training reward", "reward", record.reward_history),
              figures.Series("exact match on held-out prompts", "exact", exact)]  # fmt: skip
    drawn = [one for one in series if one.points]
    return figures.curves(drawn, x_label="iteration (optimizer steps)") if drawn else ""


def _evaluation(record: Record) -> str:
    found = record.evaluation
    if not found:
        return ""
    rows = [
        (" ".join(map(str, e["prompt"])), " ".join(map(str, e["answer"])), "✓" if e["correct"] else "✗")
        for e in found.get("examples", [])
    ]
    said = escape(
        f"The final policy was downloaded from {found.get('uri', '')}, loaded with from_pretrained and asked "
        f"{found.get('prompts', 0)} prompts that training never drew, greedily: {found['exactMatch']:.1%} right."
    )
    return f"<p>{said}</p>" + _table(("prompt, as token ids", "answer", "right"), rows)


def _timeline(record: Record) -> str:
    if not record.applied:
        return ""
    end = record.finished or record.started

    def at(time: str) -> float:
        return seconds_between(record.applied, time)

    spans = []
    for group in _latest_groups(record):
        seen = [entry for entry in record.node_groups if entry["name"] == group["name"]]
        active = next((entry for entry in seen if entry["ready"] and entry["status"] == "ACTIVE"), None)
        marks = ((at(active["time"]), "ACTIVE with its nodes ready"),) if active else ()
        spans.append(figures.Span(f"group {group['role']}", "group-bar", at(seen[0]["time"]), at(end), marks=marks))
    for pod in sorted(record.pods.values(), key=lambda pod: str(pod["created"])):
        last = pod.get("finished") or pod.get("gone") or end
        marks = ((at(pod["ready"]), "ready"),) if pod.get("ready") else ()
        note = "" if pod.get("exit_code") is None else f"exit {pod['exit_code']}"
        css = {"bad": "bad-bar"}.get(_pod_css(pod), f"{pod.get('role')}-bar")
        spans.append(
            figures.Span(
                _short(pod["name"], record), css, max(0.0, at(pod["created"])), max(0.0, at(last)), note, marks
            )
        )
    moments = [
        (at(c["time"]), f"{c['type']}={c['status']} {c['reason']}") for c in record.conditions if c["status"] == "True"
    ]
    return (
        '<p class="hint">From kubectl apply. Dots: ready. Vertical lines: conditions that became True (hover).</p>'
        + figures.timeline(spans, moments=moments)
    )


def _conditions(record: Record, status: Obj) -> str:
    rows = []
    for condition in status.get("conditions", []):
        first = next((c for c in reversed(record.conditions) if c["type"] == condition["type"]), None)
        when = figures.clock(seconds_between(record.applied, first["time"])) if first and record.applied else ""
        rows.append((condition["type"], _verdict(condition), condition["reason"], when, condition.get("message", "")))
    return _table(("condition", "status", "reason", "since", "message"), rows)


def _node_groups(record: Record) -> str:
    rows = []
    for group in _latest_groups(record):
        states: list[str] = []
        for entry in record.node_groups:
            if entry["name"] == group["name"]:
                when = f" {figures.clock(seconds_between(record.applied, entry['time']))}" if record.applied else ""
                text = f"{entry['status']} {entry['ready']}/{entry['desired']}{when}"
                states.append(text)
        rows.append((group["name"], group["role"], group["instanceType"], group["zone"], " → ".join(states)))
    return _table(("name", "role or pool", "instance type", "zone", "states (ready/desired, time)"), rows)


def _latest_groups(record: Record) -> list[Obj]:
    latest: dict[str, Obj] = {}
    for entry in record.node_groups:
        latest[str(entry["name"])] = entry
    return list(latest.values())


def _transport(status: Obj) -> str:
    found = status.get("transport")
    if not found:
        return ""
    shown = {
        "requested": found.get("requested", ""),
        "effective": found.get("effective", ""),
        "evidence": found.get("evidence", "none was reported"),
    }
    verified = next((c for c in status.get("conditions", []) if c["type"] == "TransportVerified"), None)
    if verified:
        shown["TransportVerified"] = f"{verified['status']}: {verified['reason']}. {verified.get('message', '')}"
    return _pairs(shown)


def _events(record: Record) -> str:
    def when(time: str) -> str:
        return figures.clock(seconds_between(record.applied, time)) if record.applied else time

    # A readiness probe that fails while a program starts is no news.
    told = [
        e for e in record.events if e["by"] == CONTROLLER or (e["type"] == "Warning" and e["reason"] != "Unhealthy")
    ]
    rows = [(when(e["time"]), e["about"], e["reason"], e["note"]) for e in told]
    return _table(("time", "about", "reason", "message"), rows)


def _steps(record: Record) -> str:
    rows = [
        (TITLES.get(step["key"], step["key"]), f"{step['seconds']:.1f} s", step.get("note", ""))
        for step in record.steps
    ]
    return _table(("step", "took", ""), rows)


def _verdict(condition: Obj) -> Html:
    """True is good news or bad, by the condition's type; False and Unknown are shown without judgement."""
    news = "bad" if condition["type"] in ("Failed", "Degraded") else "good"
    css = news if condition["status"] == "True" else ""
    return Html(f'<span class="pill {css}">{escape(condition["status"])}</span>')


class Html(str):
    """Text that is HTML already."""

    __slots__ = ()


def _cell(value: Any) -> str:
    return value if isinstance(value, Html) else escape(str(value))


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = ["<tr>" + "".join(f"<td>{_cell(value)}</td>" for value in row) + "</tr>" for row in rows]
    if not lines:
        return ""
    return (
        '<div class="scroll"><table><tr>'
        + "".join(f"<th>{escape(name)}</th>" for name in head)
        + "</tr>"
        + "".join(lines)
        + "</table></div>"
    )


def _pairs(values: dict[str, Any]) -> str:
    return _table(("", ""), values.items()) if values else ""
