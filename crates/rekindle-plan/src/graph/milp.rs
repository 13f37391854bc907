//! Small graphs exactly, as a mixed integer linear program solved by HiGHS.
//!
//! The formulation is Checkmate's (Jain et al., MLSys 2020). The nodes are taken in the graph's order, and stage `t` of
//! the plan ends with the first computation of the `t`-th node; before it, in the same order, any earlier node may be
//! computed once more.
//!
//! ```text
//! R[t,i]    node i is computed in stage t              R[t,t] = 1
//! S[t,i]    its value is kept from stage t-1 to t      S[t,i] <= R[t-1,i] + S[t-1,i]
//!           what is read is there                      R[t,j] <= R[t,i] + S[t,i]        for i read by j
//! F[t,i,k]  it is freed after k was computed           F <= R[t,k], F <= 1 - S[t+1,i], F <= 1 - R[t,j] for readers j > k
//! U[t,k]    bytes while k is computed                  U[t,k+1] = U[t,k] - freed after k + bytes of k+1, within the budget
//! ```
//!
//! So the optimum is over *staged plans in the graph's order*: nodes are computed for the first time in that order, and
//! at most once in each stage. Other plans can be faster: another order may hold less at once, and a node computed
//! twice within a stage may save room. [`solve`](crate::graph::solve) knows no such limits.

use highs::{Col, HighsModelStatus, HighsSolutionStatus, RowProblem, Sense};

use crate::graph::word::{Scratch, Word};
use crate::graph::{Graph, GraphPlan, GraphPlanError, Problem, gap};
use crate::{Bytes, Gap, Nanos, Request, Status};

/// The largest graph that is handed to HiGHS: beyond it the program has a million rows.
pub const MOST_MILP_NODES: usize = 160;

/// Why there is no plan by MILP.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MilpError {
    /// The graph is too large.
    #[error(
        "`milp` plans graphs of up to {MOST_MILP_NODES} nodes, but this one has {nodes}; `graph` plans larger ones"
    )]
    TooLarge {
        /// How many nodes are needed.
        nodes: usize,
    },
    /// No staged plan fits.
    #[error("`milp` has no plan in the graph's order within {} ({} bytes); `graph` may have one in another order", budget_bytes, budget_bytes.get())]
    NoPlan {
        /// The budget it was given, less the margin.
        budget_bytes: Bytes,
    },
    /// HiGHS found nothing in time, or failed.
    #[error("`milp` found no plan: HiGHS ended with {status}; allow more time, or use `graph`")]
    Unsolved {
        /// What HiGHS said.
        status: String,
    },
    /// The simulator refuses the plan: sizes so far apart that HiGHS's tolerance was a byte too much.
    #[error(transparent)]
    Refused(#[from] GraphPlanError),
}

/// The columns of the program, by stage and place.
struct Columns {
    computed: Vec<Vec<Option<Col>>>,
    kept: Vec<Vec<Option<Col>>>,
}

/// The fastest staged plan of `graph` in its own order, by HiGHS: [`Status::Optimal`] for that class of plans, or
/// [`Status::Feasible`] with HiGHS's gap when the time of the request is up. Without a budget nothing is recomputed.
///
/// # Errors
/// When the graph is too large, no staged plan fits, or HiGHS finds none in time.
#[allow(clippy::needless_range_loop, reason = "stages and places number rows and columns alike")]
pub fn milp(graph: &Graph, request: &Request) -> Result<GraphPlan, MilpError> {
    let problem = Problem::new(graph);
    // Inputs first: they read nothing, so this is an order too.
    let nodes: Vec<usize> = problem.inputs.iter().chain(&problem.order).map(|&node| node as usize).collect();
    let inputs = problem.inputs.len();
    if nodes.len() > MOST_MILP_NODES {
        return Err(MilpError::TooLarge { nodes: nodes.len() });
    }
    let budget = request.usable_bytes();
    let mut scratch = Scratch::default();
    let once = Word(problem.order.clone());
    if once.cost(&problem, budget.get(), &mut scratch, |_, _| {}).is_some() {
        return judged(graph, request, Status::Optimal, &once);
    }

    let (program, columns) = program(&problem, &nodes, budget);
    let failed = |status: &dyn std::fmt::Debug| MilpError::Unsolved { status: format!("{status:?}") };
    let mut model = program.try_optimise(Sense::Minimise).map_err(|status| failed(&status))?;
    model.make_quiet();
    let seconds = request.time_limit.as_secs_f64().min(1e6);
    for (option, value) in [("time_limit", seconds), ("mip_rel_gap", 0.0), ("mip_abs_gap", 1e-7)] {
        model.try_set_option(option, value).map_err(|status| failed(&status))?;
    }
    let solved = model.try_solve().map_err(|status| failed(&status))?;
    let status = match solved.status() {
        HighsModelStatus::Infeasible => return Err(MilpError::NoPlan { budget_bytes: budget }),
        HighsModelStatus::Optimal => Status::Optimal,
        _ if solved.primal_solution_status() == HighsSolutionStatus::Feasible => {
            Status::Feasible(Gap::new(solved.mip_gap()).unwrap_or(Gap::ZERO))
        }
        other => return Err(failed(&other)),
    };
    let values = solved.get_solution();
    let values = values.columns();
    let set = |column: Option<Col>| {
        column.is_some_and(|column| values.get(column.index()).is_some_and(|value| *value > 0.5))
    };
    let mut word = Vec::new();
    for stage in inputs..nodes.len() {
        for place in inputs..=stage {
            // What is kept need not be computed, whatever a solution says of nodes that cost no time.
            let kept = columns.kept[stage].get(place).copied().flatten();
            if place == stage || (set(columns.computed[stage][place]) && !set(kept)) {
                word.push(nodes[place] as u32);
            }
        }
    }
    let mut word = Word(word);
    word.clean(&problem, &mut scratch);
    judged(graph, request, status, &word)
}

fn judged(graph: &Graph, request: &Request, status: Status, word: &Word) -> Result<GraphPlan, MilpError> {
    let actions = word.actions(graph);
    let mut plan =
        GraphPlan::judged(graph, "milp".to_owned(), status, request.budget_bytes, Nanos::ZERO, actions)?;
    // A plan without recomputation is the fastest of all, whatever HiGHS could say.
    if gap(plan.predicted.step_ns, graph.lower_bound()) == 0.0 {
        plan.status = Status::Optimal;
    }
    Ok(plan)
}

/// The whole program. Bytes are in parts of the budget and times in parts of the longest, so that numbers are near 1.
#[allow(clippy::needless_range_loop, reason = "stages and places number rows and columns alike")]
fn program(problem: &Problem, nodes: &[usize], budget: Bytes) -> (RowProblem, Columns) {
    let mut program = RowProblem::new();
    let count = nodes.len();
    let inputs = problem.inputs.len();
    let bytes = |place: usize| problem.bytes[nodes[place]] as f64 / (budget.get() as f64).max(1.0);
    let longest = nodes.iter().map(|&node| problem.time[node]).max().unwrap_or(0).max(1) as f64;
    let mut place_of = vec![usize::MAX; problem.len()];
    for (place, &node) in nodes.iter().enumerate() {
        place_of[node] = place;
    }
    let reads = |place: usize| problem.reads(nodes[place]).iter().map(|&read| place_of[read as usize]);
    let readers: Vec<Vec<usize>> = (0..count)
        .map(|place| {
            let readers = problem.readers(nodes[place]).iter().map(|&reader| place_of[reader as usize]);
            readers.filter(|&reader| reader != usize::MAX).collect()
        })
        .collect();

    // Stages start at the first node to compute. Row `count` of `kept` is what is there at the end.
    let mut computed = vec![vec![None; count]; count];
    let mut kept = vec![vec![None; count]; count + 1];
    for stage in inputs..count {
        for place in inputs..=stage {
            let cost = problem.time[nodes[place]] as f64 / longest;
            let lower = u8::from(place == stage);
            let upper = u8::from(place == stage || problem.recomputable[nodes[place]]);
            computed[stage][place] =
                Some(program.add_integer_column(cost, f64::from(lower)..=f64::from(upper)));
        }
    }
    for stage in inputs..=count {
        for place in 0..stage.min(count) {
            let (lower, upper) = match stage {
                // At the start the inputs are there, at the end the outputs and nothing else.
                _ if stage == count => {
                    let output = f64::from(u8::from(problem.output[nodes[place]]));
                    (output, output)
                }
                _ if stage == inputs => (1.0, 1.0),
                _ => (0.0, 1.0),
            };
            kept[stage][place] = Some(program.add_integer_column(0.0, lower..=upper));
        }
    }
    let columns = Columns { computed, kept };
    let with = |column: Option<Col>, factor: f64| column.map(|column| (column, factor));

    for stage in inputs..count {
        for place in inputs..=stage {
            for read in reads(place) {
                let there = [with(columns.computed[stage][read], 1.0), with(columns.kept[stage][read], 1.0)];
                let row = there.into_iter().chain([with(columns.computed[stage][place], -1.0)]).flatten();
                program.add_row(0.0.., row.collect::<Vec<_>>());
            }
        }
        for place in 0..=stage {
            let there = [with(columns.computed[stage][place], 1.0), with(columns.kept[stage][place], 1.0)];
            let row = there.into_iter().chain([with(columns.kept[stage + 1][place], -1.0)]).flatten();
            program.add_row(0.0.., row.collect::<Vec<_>>());
        }
        // Bytes before each computation, by what was there, made and freed in this stage.
        let mut alive: Option<Col> = None;
        let mut freed: Vec<(Col, f64)> = Vec::new();
        for place in inputs..=stage {
            let now = program.add_column(0.0, 0.0..=1.0);
            // now = before - freed after the last + made
            let mut row = vec![(now, 1.0)];
            row.extend(with(columns.computed[stage][place], -bytes(place)));
            match alive {
                Some(before) => {
                    row.push((before, -1.0));
                    row.append(&mut freed);
                }
                None => {
                    row.extend((0..stage).filter_map(|kept| with(columns.kept[stage][kept], -bytes(kept))));
                }
            }
            program.add_row(0.0..=0.0, row);
            let workspace = problem.workspace[nodes[place]] as f64 / (budget.get() as f64).max(1.0);
            if workspace > 0.0 {
                let row = [Some((now, 1.0)), with(columns.computed[stage][place], workspace)];
                program.add_row(..=1.0, row.into_iter().flatten().collect::<Vec<_>>());
            }
            for value in reads(place).chain([place]) {
                let Some(next) = columns.kept[stage + 1][value] else { continue };
                let free = program.add_column(0.0, 0.0..=1.0);
                freed.push((free, bytes(value)));
                let row = [Some((free, 1.0)), with(columns.computed[stage][place], -1.0)];
                program.add_row(..=0.0, row.into_iter().flatten().collect::<Vec<_>>());
                program.add_row(..=1.0, vec![(free, 1.0), (next, 1.0)]);
                for &later in readers[value].iter().filter(|&&later| later > place && later <= stage) {
                    let row = [Some((free, 1.0)), with(columns.computed[stage][later], 1.0)];
                    program.add_row(..=1.0, row.into_iter().flatten().collect::<Vec<_>>());
                }
            }
            alive = Some(now);
        }
    }
    (program, columns)
}
