//! The planner of graphs: against exhaustive search, against published figures, and what must hold on any graph.
#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

mod graphs;

use std::collections::{BTreeMap, BinaryHeap};
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use graphs::{Reads, linear, random, residual, two_towers, u_net, unit_linear};
use proptest::prelude::*;
use rekindle_plan::graph::{
    Graph, GraphAction, GraphError, GraphPlan, GraphPlanError, GraphReason, GraphSolveError, Item, Kind,
    Node, knapsack, knapsack_selection, min_cut, simulate, solve, solve_watched,
};
use rekindle_plan::{Bytes, Gap, Name, Nanos, Request, Status};

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

/// Actions from their text form, with `/` between them.
fn actions(text: &str) -> Vec<GraphAction> {
    text.split('/').map(|line| line.trim().parse().unwrap()).collect()
}

/// A request that looks for the very best.
fn best(budget: u64) -> Request {
    Request { gap: Gap::ZERO, ..Request::new(Bytes::new(budget)) }
}

// ---- a second opinion ----

/// The time of the fastest plan, by walking all sets of values that can be there: every compute and every free is a
/// step of its own. Knows nothing of words, bounds or dominance.
fn exhaustive(graph: &Graph, budget: u64) -> Option<u64> {
    let nodes = graph.nodes();
    let bytes = |set: u32| -> u64 {
        (0..nodes.len()).filter(|node| set >> node & 1 == 1).map(|node| nodes[node].bytes.get()).sum()
    };
    let outputs = graph.outputs().iter().fold(0u32, |set, output| set | 1 << output);
    let inputs = (0..nodes.len())
        .filter(|&node| nodes[node].kind == Kind::Input)
        .fold(0u32, |set, node| set | 1 << node);
    if bytes(inputs) > budget {
        return None;
    }
    // What is there, and which pinned nodes have been computed.
    let mut times = BTreeMap::from([((inputs, 0u32), 0u64)]);
    let mut open = BinaryHeap::from([(std::cmp::Reverse(0u64), (inputs, 0u32))]);
    while let Some((std::cmp::Reverse(time), (set, pinned))) = open.pop() {
        if times[&(set, pinned)] < time {
            continue;
        }
        if set == outputs {
            return Some(time);
        }
        let mut step = |next: (u32, u32), time: u64| {
            if times.get(&next).is_none_or(|&known| time < known) {
                times.insert(next, time);
                open.push((std::cmp::Reverse(time), next));
            }
        };
        for (node, profile) in nodes.iter().enumerate() {
            let bit = 1u32 << node;
            if set & bit != 0 {
                step((set & !bit, pinned), time);
            } else if profile.kind != Kind::Input
                && pinned & bit == 0
                && graph.reads(node).iter().all(|&read| set >> read & 1 == 1)
                && bytes(set | bit) + profile.workspace_bytes.get() <= budget
            {
                let pinned = if profile.pinned { pinned | bit } else { pinned };
                step((set | bit, pinned), time + profile.time_ns.get());
            }
        }
    }
    None
}

/// Small graphs with everything a graph can have.
fn any_graph(most: usize) -> impl Strategy<Value = Graph> {
    let node = (0..4u8, 0..12u64, 0..12u64, 0..4u64, 0..8u8, any::<u64>());
    (proptest::collection::vec(node, 1..=most), any::<bool>()).prop_map(|(drawn, all_sinks)| {
        let mut nodes: Vec<Node> = Vec::new();
        let mut edges = Vec::new();
        let mut reads_any = Vec::new();
        for (index, (kind, time, bytes, workspace, pin, dice)) in drawn.into_iter().enumerate() {
            let kind = match kind {
                0 if index < 3 => Kind::Input,
                3 => Kind::Backward,
                _ => Kind::Forward,
            };
            let mut node = Node::new(name(&format!("n{index}")), kind, Nanos::new(time), Bytes::new(bytes));
            if kind == Kind::Input {
                node.time_ns = Nanos::ZERO;
            } else {
                node.workspace_bytes = Bytes::new(workspace);
                node.pinned = pin == 0;
                for (read, other) in nodes.iter().enumerate() {
                    // About two reads for each node, nearer ones more often.
                    if dice >> (5 * (index - read) % 60) & 31 < 40 / (index as u64 + 1) + 4 {
                        edges.push((Node::clone(other).name, node.name.clone()));
                        reads_any.push(read);
                    }
                }
            }
            nodes.push(node);
        }
        let outputs = (!all_sinks).then(|| vec![nodes[nodes.len() - 1].name.clone()]);
        Graph::new("any", "none", nodes, edges, outputs).unwrap()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// For every budget there is: the optimum, or a gap that says the truth; and the smallest budget, or none smaller.
    #[test]
    fn the_plan_is_that_of_exhaustive_search(graph in any_graph(10), tighten in 0..100u64) {
        let most = GraphPlan::store_all(&graph, None).unwrap().predicted.peak_bytes.get();
        let budget = most * tighten / 100;
        let optimum = exhaustive(&graph, budget);
        match solve(&graph, &best(budget)) {
            Ok(plan) => {
                let simulation = plan.judge(&graph).unwrap();
                prop_assert!(simulation.peak_bytes.get() <= budget);
                let cost = plan.predicted.step_ns.get();
                let optimum = optimum.expect("a plan is there, so exhaustive search finds one");
                prop_assert!(plan.predicted.lower_bound_ns.get() <= optimum);
                prop_assert!(optimum <= cost);
                // Graphs this small are solved.
                prop_assert_eq!(optimum, cost);
                prop_assert_eq!(plan.status, Status::Optimal);
            }
            Err(GraphSolveError::BudgetTooSmall { smallest_bytes, proven, least_bytes, .. }) => {
                prop_assert_eq!(optimum, None);
                prop_assert!(proven);
                prop_assert_eq!(smallest_bytes, least_bytes);
                prop_assert!(smallest_bytes.get() > budget);
                prop_assert!(exhaustive(&graph, smallest_bytes.get()).is_some());
                prop_assert_eq!(exhaustive(&graph, smallest_bytes.get() - 1), None);
                prop_assert!(solve(&graph, &best(smallest_bytes.get())).is_ok());
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    /// Larger graphs than can be solved: whatever comes out is legal, within the budget, and honest.
    #[test]
    fn every_plan_is_legal_within_its_budget_and_above_its_bound(graph in any_graph(24), tighten in 30..100u64) {
        let all = GraphPlan::store_all(&graph, None).unwrap();
        let budget = all.predicted.peak_bytes.get() * tighten / 100;
        let request = Request { time_limit: Duration::from_secs(60), ..Request::new(Bytes::new(budget)) };
        match solve(&graph, &request) {
            Ok(plan) => {
                let simulation = plan.judge(&graph).unwrap();
                prop_assert!(simulation.peak_bytes.get() <= budget);
                prop_assert_eq!(simulation.step_ns, plan.predicted.step_ns);
                prop_assert_eq!(simulation.moments.len(), plan.actions.len());
                let alive: u64 = simulation.peak_values.iter().map(|live| live.bytes.get()).sum();
                prop_assert_eq!(alive, simulation.peak_bytes.get());
                prop_assert!(plan.predicted.lower_bound_ns <= plan.predicted.step_ns);
                prop_assert!(graph.lower_bound() <= plan.predicted.lower_bound_ns);
                prop_assert_eq!(GraphPlan::from_json(&plan.to_json()).unwrap(), plan.clone());
                prop_assert_eq!(solve(&graph, &request).unwrap(), plan);
            }
            Err(GraphSolveError::BudgetTooSmall { smallest_bytes, least_bytes, .. }) => {
                prop_assert!(smallest_bytes.get() > budget && least_bytes <= smallest_bytes);
                let met = solve(&graph, &Request::new(smallest_bytes)).unwrap();
                prop_assert!(met.predicted.peak_bytes <= smallest_bytes);
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

}

proptest! {
    /// Where both are optimal, more bytes never cost more time; a bound never falls when bytes are taken away.
    #[test]
    fn more_budget_never_costs_more_time(graph in any_graph(9), one in 30..100u64, other in 30..100u64) {
        let most = GraphPlan::store_all(&graph, None).unwrap().predicted.peak_bytes.get();
        let (small, large) = (most * one.min(other) / 100, most * one.max(other) / 100);
        if let Ok(tight) = solve(&graph, &best(small)) {
            let wide = solve(&graph, &best(large)).unwrap();
            prop_assert!(wide.predicted.step_ns <= tight.predicted.step_ns);
            prop_assert!(wide.predicted.lower_bound_ns <= tight.predicted.step_ns);
        }
    }

    /// All selections of a small graph, one by one: none with fewer bytes, and none as small with less time.
    #[test]
    fn min_cut_is_the_smallest_selection(graph in any_graph(9)) {
        let selection = min_cut(&graph);
        let fewest = selections(&graph).into_iter().min().unwrap();
        prop_assert_eq!((selection.kept_bytes.get(), selection.recompute_ns.get()), fewest);
        let plan = selection.plan(&graph, None).unwrap();
        prop_assert!(plan.predicted.recompute_ns <= selection.recompute_ns);
    }

    #[test]
    fn a_knapsack_is_the_best_of_all(
        drawn in proptest::collection::vec((0..40u64, 0..40u64), 0..12),
        room in 0..160u64,
    ) {
        let items: Vec<Item> = drawn
            .iter()
            .map(|&(bytes, saves)| Item { bytes: Bytes::new(bytes), saves: Nanos::new(saves) })
            .collect();
        let packing = knapsack(&items, Bytes::new(room));
        prop_assert!(packing.optimal);
        let of = |chosen: &[usize]| {
            let bytes: u64 = chosen.iter().map(|&item| drawn[item].0).sum();
            let saves: u64 = chosen.iter().map(|&item| drawn[item].1).sum();
            (bytes, saves)
        };
        let (bytes, saves) = of(&packing.items);
        prop_assert!(bytes <= room);
        let all = (0..1u32 << drawn.len()).map(|set| {
            let chosen: Vec<usize> = (0..drawn.len()).filter(|item| set >> item & 1 == 1).collect();
            of(&chosen)
        });
        let most = all.filter(|(bytes, _)| *bytes <= room).map(|(_, saves)| saves).max().unwrap();
        prop_assert_eq!(saves, most);
    }

    #[test]
    fn a_knapsack_selection_is_never_over_its_budget(graph in any_graph(12), budget in 0..120u64) {
        match knapsack_selection(&graph, Bytes::new(budget)) {
            Ok(selection) => {
                prop_assert!(selection.kept_bytes.get() <= budget && selection.optimal);
                selection.plan(&graph, None).unwrap();
            }
            Err(GraphSolveError::BudgetTooSmall { smallest_bytes, .. }) => {
                prop_assert!(smallest_bytes.get() > budget);
                knapsack_selection(&graph, smallest_bytes).unwrap();
            }
            Err(other) => prop_assert!(false, "{}", other),
        }
    }

    /// The judge against a walk of its own, on actions drawn at random.
    #[test]
    fn the_judge_agrees_with_a_naive_walk(graph in any_graph(6), drawn in proptest::collection::vec((any::<bool>(), 0..6usize), 0..30)) {
        let nodes = graph.nodes();
        let drawn: Vec<GraphAction> = drawn
            .into_iter()
            .filter(|(_, node)| *node < nodes.len())
            .map(|(free, node)| if free { GraphAction::free(nodes[node].name.clone()) } else { GraphAction::compute(nodes[node].name.clone()) })
            .collect();
        let mut there: Vec<&Name> = nodes.iter().filter(|node| node.kind == Kind::Input).map(|node| &node.name).collect();
        let mut computed: Vec<&Name> = Vec::new();
        let find = |name: &Name| nodes.iter().position(|node| node.name == *name).unwrap();
        let mut wrong = None;
        for (index, action) in drawn.iter().enumerate() {
            let node = find(action.node());
            let name = &nodes[node].name;
            let right = match action {
                GraphAction::Free { .. } => there.contains(&name),
                GraphAction::Compute { .. } => {
                    !there.contains(&name)
                        && nodes[node].kind != Kind::Input
                        && !(nodes[node].pinned && computed.contains(&name))
                        && graph.reads(node).iter().all(|&read| there.contains(&&nodes[read].name))
                }
            };
            if !right {
                wrong = Some(index);
                break;
            }
            match action {
                GraphAction::Free { .. } => there.retain(|other| *other != name),
                GraphAction::Compute { .. } => {
                    there.push(name);
                    computed.push(name);
                }
            }
        }
        there.sort();
        let mut outputs: Vec<&Name> = graph.outputs().iter().map(|&output| &nodes[output].name).collect();
        outputs.sort();
        if wrong.is_none() && there != outputs {
            wrong = Some(drawn.len());
        }
        prop_assert_eq!(simulate(&graph, &drawn).err().map(|illegal| illegal.index), wrong);
    }
}

/// Every selection of what to keep: its bytes and the time of what is computed again.
fn selections(graph: &Graph) -> Vec<(u64, u64)> {
    let nodes = graph.nodes();
    let late: Vec<bool> = {
        let mut late = vec![false; nodes.len()];
        for &node in graph.order() {
            late[node] =
                nodes[node].kind == Kind::Backward || graph.reads(node).iter().any(|&read| late[read]);
        }
        late
    };
    let early: Vec<usize> = (0..nodes.len()).filter(|&node| !late[node] && graph.required(node)).collect();
    let read_late =
        |node: usize| graph.readers(node).iter().any(|&reader| late[reader] && graph.required(reader));
    let mut found = Vec::new();
    'sets: for set in 0..1u32 << early.len() {
        let kept = |node: usize| {
            early.iter().position(|&other| other == node).is_some_and(|bit| set >> bit & 1 == 1)
        };
        let mut stack: Vec<usize> = early.iter().copied().filter(|&node| read_late(node)).collect();
        let mut again: Vec<usize> = Vec::new();
        while let Some(node) = stack.pop() {
            if kept(node) || again.contains(&node) {
                continue;
            }
            if !nodes[node].recomputable() {
                continue 'sets;
            }
            again.push(node);
            stack.extend(graph.reads(node));
        }
        let bytes = early.iter().filter(|&&node| kept(node)).map(|&node| nodes[node].bytes.get()).sum();
        found.push((bytes, again.iter().map(|&node| nodes[node].time_ns.get()).sum()));
    }
    found
}

// ---- figures of others ----

/// Checkmate's optima on unit linear graphs of T nodes, with the backward of a layer reading what the layer read.
#[test]
fn checkmates_optima_are_found_and_proven() {
    for (nodes, budget, optimum) in
        [(17, 7, 19), (17, 6, 20), (25, 8, 30), (25, 7, 31), (33, 9, 41), (33, 7, 43), (49, 11, 63)]
    {
        let graph = unit_linear(nodes / 2, Reads::Input);
        assert_eq!(graph.nodes().len(), nodes);
        let plan = solve(&graph, &best(budget)).unwrap();
        assert_eq!(plan.predicted.step_ns.get(), optimum, "T{nodes} B{budget}");
        assert_eq!(plan.status, Status::Optimal, "T{nodes} B{budget}");
        let other = solve(&unit_linear(nodes / 2, Reads::Output), &best(budget)).unwrap();
        assert_eq!((other.predicted.step_ns.get(), other.status), (optimum + 1, Status::Optimal));
    }
    // The smallest figure, T9 B5 at 10, fits the other convention, a backward that reads what its layer made; with it
    // the others are one more each. Exhaustive search agrees that they exclude each other.
    let plan = solve(&unit_linear(4, Reads::Output), &best(5)).unwrap();
    assert_eq!((plan.predicted.step_ns.get(), plan.status), (10, Status::Optimal));
    assert_eq!(exhaustive(&unit_linear(4, Reads::Output), 5), Some(10));
    assert_eq!(exhaustive(&unit_linear(4, Reads::Input), 5), Some(9));
}

/// The kind of instance on which a solver that asks a float whether it is 1 goes wrong, and one that rounds sizes
/// overshoots: nearly equal densities, sizes far apart, sums that just fit.
#[test]
fn knapsacks_with_large_and_nearly_equal_numbers_are_exact() {
    let item = |bytes: u64, saves: u64| Item { bytes: Bytes::new(bytes), saves: Nanos::new(saves) };
    let big = 1u64 << 40;
    let items: Vec<Item> = (0..20).map(|i| item(big + i, big + i)).collect();
    // Ten of them fit exactly, and only the ten largest fill it.
    let room: u64 = (10..20).map(|i| big + i).sum();
    let packing = knapsack(&items, Bytes::new(room));
    assert!(packing.optimal);
    assert_eq!(packing.items, (10..20).collect::<Vec<_>>());
    let packing = knapsack(&items, Bytes::new(room - 1));
    let taken: u64 = packing.items.iter().map(|&i| big + i as u64).sum();
    assert_eq!((packing.optimal, taken), (true, room - 1));
    // Sizes and savings at the ends of what can be written down.
    let items = [item(u64::MAX, u64::MAX), item(1, 1), item(u64::MAX - 1, u64::MAX)];
    assert_eq!(knapsack(&items, Bytes::MAX).items, [1, 2]);
    assert_eq!(knapsack(&items, Bytes::ZERO).items, Vec::<usize>::new());
    assert_eq!(knapsack(&[], Bytes::MAX).items, Vec::<usize>::new());
    let many: Vec<Item> =
        (0..2_000u64).map(|i| item(1 + i * 7_919 % 10_007, 1 + i * 104_729 % 9_973)).collect();
    let start = Instant::now();
    assert!(knapsack(&many, Bytes::new(3_000_000)).optimal);
    assert!(start.elapsed() < Duration::from_secs(20));
}

/// Where greed is as good as anything, every other choice was followed all the same: minutes for 100,000 that are alike.
#[test]
fn a_hundred_thousand_items_that_are_alike_are_packed_at_once() {
    let item = Item { bytes: Bytes::new(3), saves: Nanos::new(2) };
    let start = Instant::now();
    let packing = knapsack(&vec![item; 100_000], Bytes::new(100_000));
    assert!(packing.optimal);
    assert_eq!(packing.items.len(), 33_333);
    assert!(packing.items.is_sorted_by(|one, next| one + 3 <= *next && *next <= one + 4), "evenly spread");
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

/// The first ones were kept of values that are alike, and all others were there together when the backward began.
#[test]
fn a_knapsack_of_values_that_are_alike_frees_what_it_does_not_keep() {
    const ROW: usize = 60;
    let forward =
        (0..ROW).map(|i| format!(r#"{{"name": "f{i}", "kind": "forward", "time_ns": 1, "bytes": 8}}"#));
    let backward =
        (0..ROW).map(|i| format!(r#"{{"name": "b{i}", "kind": "backward", "time_ns": 2, "bytes": 1}}"#));
    let mut edges: Vec<String> = (0..ROW).map(|i| format!(r#"["f{i}", "b{i}"]"#)).collect();
    edges.extend((1..ROW).map(|i| format!(r#"["f{}", "f{i}"], ["b{i}", "b{}"]"#, i - 1, i - 1)));
    let nodes: Vec<String> = forward.chain(backward).collect();
    let graph = Graph::from_json(&format!(
        r#"{{"format": "rekindle.graph/1", "model": "row", "device": "d", "nodes": [{}], "edges": [{}]}}"#,
        nodes.join(","),
        edges.join(",")
    ))
    .unwrap();
    let all = knapsack_selection(&graph, Bytes::MAX).unwrap().plan(&graph, None).unwrap();
    let tenth = knapsack_selection(&graph, Bytes::new(6 * 8)).unwrap();
    assert_eq!((tenth.kept.len(), tenth.again.len()), (6, 54));
    let tenth = tenth.plan(&graph, None).unwrap();
    assert!(
        tenth.predicted.peak_bytes.get() < all.predicted.peak_bytes.get() / 2,
        "{} of {}",
        tenth.predicted.peak_bytes,
        all.predicted.peak_bytes
    );
}

// ---- the judge ----

#[test]
fn every_reason_is_told_with_its_action() {
    let graph = Graph::from_json(
        r#"{"format": "rekindle.graph/1", "model": "m", "device": "d",
            "nodes": [{"name": "x", "kind": "input", "bytes": 8},
                      {"name": "p", "kind": "forward", "time_ns": 5, "bytes": 4, "pinned": true},
                      {"name": "f", "kind": "forward", "time_ns": 3, "bytes": 2, "workspace_bytes": 10},
                      {"name": "b", "kind": "backward", "time_ns": 1, "bytes": 1}],
            "edges": [["x", "p"], ["p", "f"], ["f", "b"]]}"#,
    )
    .unwrap();
    let judge = |text: &str| simulate(&graph, &actions(text)).unwrap_err();
    let reasons = [
        ("compute q", 0, GraphReason::NoNode { node: name("q") }),
        ("compute f", 0, GraphReason::Missing { node: name("f"), missing: name("p") }),
        ("compute x", 0, GraphReason::Present { node: name("x") }),
        ("free x / compute x", 1, GraphReason::Input { node: name("x") }),
        ("free p", 0, GraphReason::Absent { node: name("p") }),
        ("compute p / free p / compute p", 2, GraphReason::Pinned { node: name("p") }),
        ("compute p / compute p", 1, GraphReason::Present { node: name("p") }),
        ("compute p", 1, GraphReason::OutputMissing { node: name("b") }),
        ("compute p / compute f / compute b", 3, GraphReason::Left { node: name("x") }),
    ];
    for (text, index, reason) in reasons {
        let illegal = judge(text);
        assert_eq!((illegal.index, illegal.reason), (index, reason), "{text}");
    }
    assert_eq!(
        judge("compute f").to_string(),
        "action 0 (`compute f`) cannot run: `f` reads `p`, which is not there; compute it first, or free it later"
    );
    assert_eq!(
        judge("compute p").to_string(),
        "action 1 (`end`) cannot run: the output `b` is not there at the end"
    );

    let simulation = simulate(
        &graph,
        &actions("compute p / free x / compute f / free f / compute f / free p / compute b / free f"),
    )
    .unwrap();
    // p, f and the workspace of f: the first of two equal peaks.
    assert_eq!((simulation.peak_bytes, simulation.peak_action), (Bytes::new(16), Some(2)));
    let peak: Vec<String> = (simulation.peak_values.iter())
        .map(|live| {
            format!("{}{} {}", live.node, if live.workspace { " workspace" } else { "" }, live.bytes.get())
        })
        .collect();
    assert_eq!(peak, ["f workspace 10", "p 4", "f 2"]);
    assert_eq!(
        (simulation.step_ns, simulation.recompute_ns, simulation.computes),
        (Nanos::new(12), Nanos::new(3), 4)
    );
}

#[test]
fn a_plan_is_refused_for_another_graph_or_over_its_budget() {
    let (one, other) = (unit_linear(3, Reads::Input), unit_linear(4, Reads::Input));
    let mut plan = GraphPlan::store_all(&one, None).unwrap();
    assert!(matches!(plan.judge(&other), Err(GraphPlanError::OtherGraph { .. })));
    plan.budget_bytes = Some(plan.predicted.peak_bytes.saturating_sub(Bytes::new(1)));
    assert!(matches!(plan.judge(&one), Err(GraphPlanError::OverBudget { .. })));
    let error = GraphPlan::from_json(&plan.to_json().replace("graph-plan/1", "graph-plan/2")).unwrap_err();
    assert!(error.to_string().contains(r#"expected "rekindle.graph-plan/1""#), "{error}");
    let error = GraphPlan::from_json(&plan.to_json().replace("compute f0", "conjure f0")).unwrap_err();
    assert!(error.to_string().contains("compute or free"), "{error}");
}

// ---- what people may give ----

#[test]
fn bad_input_is_an_answer_or_a_typed_error() {
    assert!(matches!(Graph::new("m", "d", vec![], vec![], None), Err(GraphError::NoNodes { .. })));
    let node =
        |text: &str, time, bytes| Node::new(name(text), Kind::Forward, Nanos::new(time), Bytes::new(bytes));
    let cycle = vec![(name("a"), name("b")), (name("b"), name("a"))];
    let error = Graph::new("m", "d", vec![node("a", 1, 1), node("b", 1, 1)], cycle, None).unwrap_err();
    assert_eq!(error.to_string(), "the graph has a cycle through `b`, `a`");

    // Nothing costs anything.
    let free =
        Graph::new("m", "d", vec![node("a", 0, 0), node("b", 0, 0)], vec![(name("a"), name("b"))], None)
            .unwrap();
    let plan = solve(&free, &best(0)).unwrap();
    assert_eq!((plan.status.clone(), plan.gap()), (Status::Optimal, 0.0));

    // 2^60 bytes and 2^60 nanoseconds, recomputed.
    let huge = 1u64 << 60;
    let nodes = ["a", "b", "c", "d", "e"].map(|text| node(text, huge, huge)).to_vec();
    let edges = [("a", "b"), ("b", "c"), ("c", "d"), ("b", "d"), ("d", "e"), ("a", "e")];
    let edges: Vec<(Name, Name)> = edges.iter().map(|(from, to)| (name(from), name(to))).collect();
    let graph = Graph::new("m", "d", nodes, edges, None).unwrap();
    let plan = solve(&graph, &best(3 * huge)).unwrap();
    assert_eq!((plan.predicted.step_ns.get(), plan.status), (6 * huge, Status::Optimal));

    let error = solve(&graph, &best(0)).unwrap_err();
    let (smallest, least) = (Bytes::new(3 * huge), Bytes::new(3 * huge));
    assert_eq!(
        error,
        GraphSolveError::BudgetTooSmall {
            budget_bytes: Bytes::ZERO,
            smallest_bytes: smallest,
            proven: true,
            least_bytes: least
        }
    );
    assert!(error.to_string().contains("the smallest budget any plan can meet is 3145728.0 TiB"), "{error}");

    // Without a budget nothing is recomputed; with a margin the plan is for less.
    let plan = solve(&graph, &Request::default()).unwrap();
    assert_eq!((plan.predicted.recompute_ns, plan.budget_bytes), (Nanos::ZERO, None));
    let graph = unit_linear(8, Reads::Input);
    let plan = solve(&graph, &best(9).margin(0.25)).unwrap();
    assert!(plan.predicted.peak_bytes <= Bytes::new(7));
    assert_eq!(plan.budget_bytes, Some(Bytes::new(9)));
}

#[test]
fn large_graphs_are_answered_in_bounded_time() {
    let limit = Duration::from_secs(2);
    let graph = linear(50_000, 7);
    assert_eq!(graph.nodes().len(), 100_001);
    let all = GraphPlan::store_all(&graph, None).unwrap().predicted.peak_bytes.get();
    for budget in [all, all / 2, 0] {
        let start = Instant::now();
        let request = Request { time_limit: limit, ..Request::new(Bytes::new(budget)) };
        match solve(&graph, &request) {
            Ok(plan) => assert!(plan.predicted.peak_bytes.get() <= budget),
            Err(GraphSolveError::BudgetTooSmall { smallest_bytes, .. }) => {
                assert!(smallest_bytes.get() > budget)
            }
            Err(other) => panic!("{other}"),
        }
        // Twice the limit for reading, writing and judging, on a busy machine, unoptimised.
        assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
    }
}

#[test]
fn the_watcher_is_told_and_can_stop() {
    let graph = two_towers(12, 1);
    let all = GraphPlan::store_all(&graph, None).unwrap().predicted.peak_bytes.get();
    let mut seen = Vec::new();
    let start = Instant::now();
    let plan = solve_watched(&graph, &best(all * 4 / 10), &mut |progress| {
        seen.push(*progress);
        if progress.best_ns.is_some() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    })
    .unwrap();
    assert!(start.elapsed() < Duration::from_secs(5));
    assert!(seen.iter().any(|progress| progress.best_ns.is_none() && progress.gap().is_none()));
    let last = seen.last().unwrap();
    assert!(last.best_ns.is_some_and(|best| best >= plan.predicted.step_ns));
    assert!(last.lower_bound_ns > graph.lower_bound());

    let start = Instant::now();
    let request = Request { time_limit: Duration::from_millis(300), ..best(all * 4 / 10) };
    solve(&graph, &request).unwrap();
    assert!(start.elapsed() < Duration::from_secs(3), "{:?}", start.elapsed());
}

/// A plan that is found only after the time is up is a plan, not a budget that is too small.
#[test]
fn no_time_at_all_gives_a_plan_or_a_larger_budget() {
    for graph in [linear(24, 1), two_towers(12, 1), u_net(3, 2, 1), linear(300, 1)] {
        let all = GraphPlan::store_all(&graph, None).unwrap().predicted.peak_bytes.get();
        for percent in [100, 90, 50, 20, 1] {
            let budget = all * percent / 100;
            let request = Request { time_limit: Duration::ZERO, ..best(budget) };
            match solve(&graph, &request) {
                Ok(plan) => assert!(plan.predicted.peak_bytes.get() <= budget),
                Err(GraphSolveError::BudgetTooSmall { smallest_bytes, least_bytes, .. }) => {
                    assert!(smallest_bytes.get() > budget && least_bytes <= smallest_bytes);
                }
                Err(other) => panic!("{other}"),
            }
        }
    }
}

/// Residuals, towers and skips: within a few percent of the bound, at budgets where store-all is far too large.
#[test]
fn typical_graphs_come_close_to_their_bounds() {
    for (graph, percent, within) in [
        (linear(24, 1), 50, 0.02),
        (two_towers(12, 1), 50, 0.04),
        (u_net(3, 2, 1), 50, 0.02),
        (residual(5, 1), 50, 0.01),
        (random(24, 3), 80, 0.05),
    ] {
        let all = GraphPlan::store_all(&graph, None).unwrap().predicted.peak_bytes.get();
        let gap = Gap::new(within).unwrap();
        let request = Request {
            gap,
            time_limit: Duration::from_secs(60),
            ..Request::new(Bytes::new(all * percent / 100))
        };
        let plan = solve(&graph, &request).unwrap();
        assert!(plan.gap() <= within, "{}: {} over {within}", graph.model(), plan.gap());
    }
}

#[cfg(feature = "milp")]
mod milp {
    use super::*;
    use rekindle_plan::graph::{MOST_MILP_NODES, MilpError, milp};

    fn patient(budget: u64) -> Request {
        Request { time_limit: Duration::from_secs(300), ..best(budget) }
    }

    #[test]
    fn checkmates_smaller_optima_are_reproduced() {
        for (nodes, budget, optimum) in [(17, 7, 19), (17, 6, 20)] {
            let plan = milp(&unit_linear(nodes / 2, Reads::Input), &patient(budget)).unwrap();
            assert_eq!(
                (plan.predicted.step_ns.get(), plan.status),
                (optimum, Status::Optimal),
                "T{nodes} B{budget}"
            );
        }
        let plan = milp(&unit_linear(4, Reads::Output), &patient(5)).unwrap();
        assert_eq!(plan.predicted.step_ns.get(), 10);
    }

    #[test]
    fn the_planner_is_never_worse_than_staged_plans() {
        for seed in 1..6 {
            let graph = random(6, seed);
            let all = GraphPlan::store_all(&graph, None).unwrap().predicted.peak_bytes.get();
            for percent in [85, 65] {
                let budget = all * percent / 100;
                let ours = solve(&graph, &best(budget));
                match milp(&graph, &patient(budget)) {
                    Ok(staged) => {
                        staged.judge(&graph).unwrap();
                        assert_eq!(staged.status, Status::Optimal);
                        let ours = ours.unwrap();
                        assert!(ours.predicted.step_ns <= staged.predicted.step_ns, "{seed} {percent}");
                        assert!(
                            ours.predicted.lower_bound_ns <= staged.predicted.step_ns,
                            "{seed} {percent}"
                        );
                    }
                    Err(MilpError::NoPlan { budget_bytes }) => assert_eq!(budget_bytes, Bytes::new(budget)),
                    Err(other) => panic!("{other}"),
                }
            }
        }
    }

    #[test]
    fn inputs_pinned_nodes_and_workspace_are_respected() {
        let graph = Graph::from_json(
            r#"{"format": "rekindle.graph/1", "model": "m", "device": "d",
                "nodes": [{"name": "x", "kind": "input", "bytes": 2},
                          {"name": "a", "kind": "forward", "time_ns": 1, "bytes": 3},
                          {"name": "p", "kind": "forward", "time_ns": 1, "bytes": 3, "pinned": true},
                          {"name": "c", "kind": "forward", "time_ns": 1, "bytes": 1, "workspace_bytes": 4},
                          {"name": "d", "kind": "backward", "time_ns": 1, "bytes": 1},
                          {"name": "e", "kind": "backward", "time_ns": 1, "bytes": 1}],
                "edges": [["x", "a"], ["a", "p"], ["p", "c"], ["c", "d"], ["p", "d"], ["d", "e"], ["a", "e"]]}"#,
        )
        .unwrap();
        for budget in 0..16 {
            let staged = milp(&graph, &patient(budget)).ok().map(|plan| plan.predicted.step_ns.get());
            assert_eq!(staged, exhaustive(&graph, budget), "{budget}");
        }
    }

    #[test]
    fn what_it_cannot_plan_is_a_typed_error() {
        let graph = unit_linear(8, Reads::Input);
        assert_eq!(milp(&graph, &patient(2)), Err(MilpError::NoPlan { budget_bytes: Bytes::new(2) }));
        let large = linear(MOST_MILP_NODES, 1);
        assert!(matches!(milp(&large, &patient(2)), Err(MilpError::TooLarge { .. })));
        let request = Request { time_limit: Duration::ZERO, ..best(7) };
        assert!(matches!(milp(&graph, &request), Ok(_) | Err(MilpError::Unsolved { .. })));
    }
}
