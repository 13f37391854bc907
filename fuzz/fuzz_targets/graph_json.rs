//! Any text is a graph or refused; a graph writes and reads back, and has a plan that its judge accepts, or an error.
#![no_main]

use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use rekindle_plan::graph::{Graph, GraphPlan, min_cut, solve};
use rekindle_plan::{Bytes, Request};

fuzz_target!(|text: &str| {
    let Ok(graph) = Graph::from_json(text) else {
        return;
    };
    assert_eq!(
        Graph::from_json(&graph.to_json()).as_ref(),
        Ok(&graph),
        "a graph reads back"
    );
    let Ok(everything) = GraphPlan::store_all(&graph, None) else {
        return;
    };
    let _ = min_cut(&graph).plan(&graph, None);
    let budget = Bytes::new(everything.predicted.peak_bytes.get() / 4 * 3);
    let request = Request {
        time_limit: Duration::from_millis(100),
        ..Request::new(budget)
    };
    match solve(&graph, &request) {
        Ok(plan) => {
            let simulation = plan.judge(&graph).expect("a solver's plan is legal");
            assert!(simulation.peak_bytes <= budget);
            assert!(plan.predicted.lower_bound_ns <= plan.predicted.step_ns);
            assert_eq!(GraphPlan::from_json(&plan.to_json()), Ok(plan));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
