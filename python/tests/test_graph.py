"""Graphs: made, read, planned and judged as the Rust crate and the command do."""

import copy
import json
import os
import pickle
import subprocess
import sys
import textwrap
import time
import xml.etree.ElementTree as xml

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import rekindle
from rekindle import Graph, GraphNode, GraphPlan, plan_graph, simulate_graph


def unet(depth=3, unit=4):
    """Down, up with what came down, and back: values that wait long for their readers."""
    nodes = [GraphNode("x", "input", bytes=unit)]
    edges = []
    last = "x"
    for level in range(depth):
        nodes.append(GraphNode(f"down.{level}", "forward", 10 + level, unit * (depth - level), workspace_bytes=1))
        edges.append((last, f"down.{level}"))
        last = f"down.{level}"
    for level in reversed(range(depth)):
        nodes.append(GraphNode(f"up.{level}", "forward", 12 + level, unit * (depth - level)))
        edges += [(last, f"up.{level}")] + ([(f"down.{level}", f"up.{level}")] if last != f"down.{level}" else [])
        last = f"up.{level}"
    forward = [node.name for node in nodes[1:]]
    for name in reversed(forward):
        nodes.append(GraphNode(f"grad.{name}", "backward", 20, unit))
        edges += [(last, f"grad.{name}")] + ([(name, f"grad.{name}")] if last != name else [])
        last = f"grad.{name}"
    return Graph("unet", "none", nodes, edges)


@pytest.fixture(name="graph")
def _graph():
    return unet()


def test_a_graph_is_a_value(graph, tmp_path):
    path = tmp_path / "graph.json"
    graph.save(path)
    for again in (Graph.load(path), Graph.from_json(graph.to_json()), pickle.loads(pickle.dumps(graph)), copy.deepcopy(graph)):
        assert again == graph and hash(again) == hash(graph) and again.fingerprint == graph.fingerprint
    assert json.loads(graph.to_json())["format"] == "rekindle.graph/1"
    rebuilt = Graph(graph.model, graph.device, graph.nodes, graph.edges, graph.outputs)
    assert rebuilt == graph
    node = graph["down.1"]
    assert pickle.loads(pickle.dumps(node)) == node == graph[2] and node in graph
    assert repr(node) == "GraphNode('down.1', 'forward', time_ns=11, bytes=8, workspace_bytes=1)"
    assert eval(repr(node), {"GraphNode": GraphNode}) == node
    assert len(graph) == len(graph.nodes) == 13 and graph[-1].name == "grad.down.0"
    assert graph.outputs == ["grad.down.0"]
    order = graph.order
    assert sorted(order) == sorted(node.name for node in graph)
    assert all(order.index(one) < order.index(other) for one, other in graph.edges)
    assert all(graph.readers(one).count(other) == graph.reads(other).count(one) == 1 for one, other in graph.edges)
    assert graph.lower_bound_ns == sum(node.time_ns for node in graph)
    with pytest.raises(AttributeError):
        graph.model = "other"
    with pytest.raises(IndexError, match="no node 13 among 13"):
        graph[13]


def test_a_plan_is_a_value_and_the_judge_agrees(graph, tmp_path):
    all_bytes = plan_graph(graph, solver="store-all").predicted.peak_bytes
    plan = plan_graph(graph, "70%")
    assert plan.budget_bytes == int(0.7 * all_bytes)
    path = tmp_path / "plan.json"
    plan.save(path)
    for again in (GraphPlan.load(path), GraphPlan.from_json(plan.to_json()), pickle.loads(pickle.dumps(plan))):
        assert again == plan and hash(again) == hash(plan)
    assert json.loads(plan.to_json())["format"] == "rekindle.graph-plan/1"
    assert plan.fingerprint == graph.fingerprint
    judged = simulate_graph(graph, plan)
    predicted = plan.predicted
    assert (judged.peak_bytes, judged.step_ns, judged.recompute_ns, judged.computes) == (
        predicted.peak_bytes,
        predicted.step_ns,
        predicted.recompute_ns,
        predicted.computes,
    )
    assert judged.peak_bytes == max(peak for peak, _ in judged.memory) <= plan.budget_bytes
    assert sum(size for _, size in judged.peak_values) == judged.peak_bytes
    assert judged.memory[judged.peak_action][0] == judged.peak_bytes
    assert pickle.loads(pickle.dumps(judged)) == judged
    # One's own actions are as good as a solver's.
    own = simulate_graph(graph, list(plan))
    assert own.peak_bytes == judged.peak_bytes and own.plan.solver == "custom" and own.plan.status == "custom"
    assert plan[0] == plan.actions[0] and plan[-2:] == plan.actions[-2:] and len(plan) == len(plan.actions)


def cheapest(graph, budget):
    """The least time over all plans, by looking at all of them: for few nodes."""
    names = [node.name for node in graph]
    at = {name: index for index, name in enumerate(names)}
    reads = [[at[read] for read in graph.reads(name)] for name in names]
    outputs = {at[name] for name in graph.outputs}
    inputs = frozenset(index for index, node in enumerate(graph) if node.kind == "input")
    size = [node.bytes for node in graph]
    best = {(inputs, frozenset(inputs)): 0}
    todo, answer = [(0, inputs, frozenset(inputs))], None
    while todo:
        todo.sort(key=lambda item: item[0])
        time_ns, there, seen = todo.pop(0)
        if best[there, seen] < time_ns:
            continue
        if outputs <= there and all(index in seen for index in outputs):
            answer = time_ns
            break
        moves = []
        for index, node in enumerate(graph):
            if index in there:
                moves.append((time_ns, there - {index}, seen))
            elif node.kind != "input" and all(read in there for read in reads[index]) and not (node.pinned and index in seen):
                if sum(size[i] for i in there) + size[index] + node.workspace_bytes <= budget:
                    moves.append((time_ns + node.time_ns, there | {index}, seen | {index} if node.pinned or index in outputs else seen))
        for cost, now, known in moves:
            if cost < best.get((now, known), float("inf")):
                best[now, known] = cost
                todo.append((cost, now, known))
    return answer


@st.composite
def graphs(draw, most=6):
    count = draw(st.integers(1, most))
    nodes, edges = [], []
    for index in range(count):
        kind = draw(st.sampled_from(["input", "forward", "forward"] if index < count // 2 else ["forward", "backward"]))
        busy = {} if kind == "input" else {"time_ns": draw(st.integers(0, 9)), "workspace_bytes": draw(st.sampled_from([0, 0, 2]))}
        nodes.append(GraphNode(f"n{index}", kind, bytes=draw(st.integers(0, 5)), pinned=draw(st.sampled_from([False] * 4 + [True])), **busy))
        if kind != "input":
            edges += [(f"n{read}", f"n{index}") for read in range(index) if draw(st.booleans())]
    return Graph("random", "none", nodes, edges)


@given(graphs(), st.integers(0, 24))
@settings(deadline=None, max_examples=150)
def test_the_plan_is_the_cheapest_there_is(graph, budget):
    """Against a search over all plans that knows nothing of the planner."""
    expected = cheapest(graph, budget)
    try:
        found = plan_graph(graph, budget, gap=0)
    except rekindle.BudgetTooSmall as error:
        assert error.smallest_bytes > budget and error.solver == "graph"
        # The inputs are there before anything is done.
        inputs = sum(node.bytes for node in graph if node.kind == "input")
        assert expected is None or inputs > budget
        assert plan_graph(graph, error.smallest_bytes).predicted.peak_bytes <= error.smallest_bytes
        return
    assert found.predicted.peak_bytes <= budget
    assert found.status == "optimal" and found.gap == 0
    assert found.predicted.step_ns == expected >= graph.lower_bound_ns


@pytest.mark.parametrize("solver", ["optimal", "graph", "store-all", "min-cut"])
def test_every_solver_keeps_its_budget_or_says_why_not(graph, solver):
    made, refused = 0, 0
    for budget in range(20, 60, 4):
        try:
            plan = plan_graph(graph, budget, solver=solver)
        except (rekindle.BudgetTooSmall, rekindle.OverBudget) as error:
            assert f"{budget} bytes" in error.message and error.hint
            refused += 1
        else:
            assert plan.predicted.peak_bytes <= budget == plan.budget_bytes
            made += 1
    assert made and refused
    faster = plan_graph(graph, 60, solver=solver).predicted.step_ns
    assert plan_graph(graph, 60).predicted.step_ns <= faster


def test_a_knapsack_counts_what_stays_between_the_passes(graph):
    with pytest.raises(rekindle.SolveError, match="`knapsack` needs a budget") as caught:
        plan_graph(graph, solver="knapsack")
    assert caught.value.hint == 'give a budget, such as budget="2GiB"'
    small, large = (plan_graph(graph, budget, solver="knapsack") for budget in (16, 64))
    assert small.budget_bytes is None, "its budget is none of the peak"
    assert small.predicted.recompute_ns > large.predicted.recompute_ns == 0
    assert plan_graph(graph, 64, solver="knapsack", margin="300%") == small


def test_margins_and_limits(graph):
    assert plan_graph(graph, 60, margin=0.5).predicted.peak_bytes * 1.5 <= 60
    start = time.monotonic()
    plan_graph(unet(40), "45%", gap=0, time_limit=0.2)
    assert time.monotonic() - start < 5
    with pytest.raises(rekindle.ArgumentError) as caught:
        plan_graph(graph, 60, time_limit=-1)
    assert caught.value.argument == "time_limit"
    with pytest.raises(rekindle.BudgetTooSmall) as caught:
        plan_graph(graph, 20, margin="10%")
    assert plan_graph(graph, caught.value.smallest_bytes, margin="10%").predicted.peak_bytes * 1.1 <= caught.value.smallest_bytes


@pytest.mark.skipif("REKINDLE_COMMAND" not in os.environ, reason="REKINDLE_COMMAND names no `rekindle` to compare with")
@pytest.mark.parametrize("asked", [["--budget", "40"], ["--budget", "70%", "--margin", "5%"], ["--solver", "min-cut"], ["--budget", "9"]])
def test_the_plan_is_the_command_s_byte_for_byte(tmp_path, graph, asked):
    path = tmp_path / "graph.json"
    graph.save(path)
    named = {"--budget": "budget", "--margin": "margin", "--solver": "solver"}
    arguments = {named[flag]: value for flag, value in zip(asked[::2], asked[1::2])}
    command = [os.environ["REKINDLE_COMMAND"], "plan", str(path), *asked, "--json"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        with pytest.raises(rekindle.PlanError) as caught:
            plan_graph(graph, **arguments)
        assert ran.stderr.splitlines()[0] == f"error: {caught.value.message}"
    else:
        assert plan_graph(graph, **arguments).to_json() == ran.stdout.rstrip("\n")


def test_wrong_graphs_are_told_apart():
    a, b = GraphNode("a", "forward", 1, 1), GraphNode("b", "forward", 1, 1)

    def refused(*given, **named):
        with pytest.raises(rekindle.GraphError) as caught:
            Graph("m", "d", *given, **named)
        assert isinstance(caught.value, ValueError)
        return caught.value

    assert refused([]).message == "the graph of `m` has no nodes, expected at least one"
    assert refused([a, a]).kind == "named twice"
    error = refused([a, b], [("a", "b"), ("b", "a")])
    assert error.kind == "cycle" and sorted(error.names) == ["a", "b"]
    error = refused([a, b], [("a", "c")])
    assert error.kind == "unknown node" and error.name == "c"
    assert error.message == "the edge from `a` to `c` names `c`, but no node has that name"
    assert refused([a, b], ["ab", "ab"]).names == ["a", "b"]
    assert refused([a, b], outputs=[]).kind == "no outputs"
    assert refused([a, b], outputs=["b", "b"]).kind == "output twice"
    assert refused([GraphNode("x", "input", time_ns=1)]).kind == "busy input"
    assert refused([GraphNode("x", "forward", bytes=2**64 - 1), a]).kind == "too large"
    with pytest.raises(rekindle.GraphError, match="truncated|ends") as caught:
        Graph.from_json(Graph("m", "d", [a]).to_json()[:-5])
    assert caught.value.kind == "truncated" and caught.value.line
    with pytest.raises(rekindle.GraphError, match="rekindle.graph/1"):
        Graph.from_json('{"format": "rekindle.profile/1"}')


def test_wrong_arguments_are_told_apart(graph):
    with pytest.raises(rekindle.UnknownName, match="`sideways` is not a kind of node") as caught:
        GraphNode("a", "sideways")
    assert caught.value.known == ["input", "forward", "backward"]
    with pytest.raises(rekindle.UnknownName, match="has no node `down.7`") as caught:
        graph.reads("down.7")
    assert caught.value.nearest.startswith("down.")
    with pytest.raises(rekindle.UnknownName) as caught:
        unet(20)["z"]
    assert caught.value.hint == "`nodes` has the names there are"
    with pytest.raises(rekindle.UnknownName, match="plans chains, but this is a graph"):
        plan_graph(graph, 40, solver="revolve")
    with pytest.raises(rekindle.UnknownName) as caught:
        plan_graph(graph, 40, solver="mincut")
    assert caught.value.nearest == "min-cut"
    with pytest.raises(rekindle.SizeError, match="smallest"):
        plan_graph(graph, "smallest")
    for wrong in (lambda: Graph("m", "d", ["a"]), lambda: Graph("m", "d", graph.nodes, [("a",)]), lambda: graph[1.5]):
        with pytest.raises(rekindle.WrongType):
            wrong()
    with pytest.raises(rekindle.WrongType, match="list of actions"):
        simulate_graph(graph, "compute a")
    with pytest.raises(TypeError):
        plan_graph("graph")


def test_wrong_plans_are_told_apart(graph):
    plan = plan_graph(graph, "70%")
    other = Graph(graph.model, "other", graph.nodes, graph.edges)
    with pytest.raises(rekindle.OtherModel) as caught:
        simulate_graph(other, plan)
    assert (caught.value.found, caught.value.expected) == (graph.fingerprint, other.fingerprint)
    with pytest.raises(rekindle.IllegalPlan) as caught:
        simulate_graph(graph, plan.actions[:-1])
    assert caught.value.action is None and caught.value.action_index == len(plan) - 1
    with pytest.raises(rekindle.IllegalPlan, match="`down.0` is there already") as caught:
        simulate_graph(graph, ["compute down.0", "compute down.0"])
    assert caught.value.action == "compute down.0" and caught.value.action_index == 1
    with pytest.raises(rekindle.PlanError, match="down.0"):
        simulate_graph(graph, ["compete down.0"])
    less = json.loads(plan.to_json())
    less["budget_bytes"] = plan.predicted.peak_bytes - 1
    with pytest.raises(rekindle.OverBudget) as caught:
        simulate_graph(graph, GraphPlan.from_json(json.dumps(less)))
    assert caught.value.peak_bytes == caught.value.budget_bytes + 1
    with pytest.raises(rekindle.PlanError, match="rekindle.graph-plan/1"):
        GraphPlan.from_json(rekindle.plan(rekindle.estimate("gpt2").profile, "40%").to_json())


def test_what_a_notebook_shows(graph):
    def words(value):
        return " ".join(xml.fromstring(value._repr_html_()).itertext())

    assert "13 nodes" in words(graph) and "grad.down.0 (output)" in words(graph) and "workspace" in words(graph)
    plan = plan_graph(graph, "70%")
    assert "compute down.0" in words(plan) and "optimal" in words(plan)
    assert "alive at the peak" in words(simulate_graph(graph, plan))
    nasty = Graph("<b>&", "\x01", [GraphNode("a", "forward")])
    assert "<b>&" in words(nasty)


@pytest.mark.skipif(os.name != "posix", reason="signals as POSIX has them")
def test_ctrl_c_stops_the_planner_itself():
    """Not only the waiting for it: its thread ends, too."""
    program = textwrap.dedent(
        """
        import os, signal, threading, time, rekindle
        from test_graph import unet
        # Whoever runs this in the background may have it ignored.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        graph = unet(60)
        threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
        try:
            rekindle.plan_graph(graph, "40%", gap=0, time_limit=60)
        except KeyboardInterrupt:
            print("stopped")
        def working():
            names = (open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task"))
            return "rekindle" in list(names)
        end = time.monotonic() + 20
        while os.path.isdir("/proc/self/task") and working() and time.monotonic() < end:
            time.sleep(0.05)
        print("ended" if not os.path.isdir("/proc/self/task") or not working() else "goes on")
        """
    )
    here = os.path.dirname(os.path.abspath(__file__))
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=here, check=False, timeout=90)
    assert ran.stdout.split() == ["stopped", "ended"], ran.stdout + ran.stderr
