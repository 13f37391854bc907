//! How the memory of a recurrence grows with its length.

use rekindle::{Budget, Bytes, Measuring, Planner, Profile, Rule, Staged};
use rekindle_models::data::{Recall, Source};
use rekindle_models::{Recurrent, RecurrentConfig, SequenceBatch, Trainable};
use rekindle_plan::solvers::Solver;

use crate::common::{alone, device};
use crate::step::step;

const LENGTHS: [usize; 3] = [128, 512, 2048];

fn net(fine_steps: usize) -> Recurrent {
    device().seed(3);
    RecurrentConfig::new(4, 32, 4).with_fine_steps(Some(fine_steps)).init(&device()).unwrap()
}

fn batch(steps: usize) -> SequenceBatch {
    Recall::new(4, steps).unwrap().draw(16, &mut fastrand::Rng::with_seed(5), &device())
}

fn profile(net: &Recurrent, batch: &SequenceBatch) -> Profile {
    let measuring = Measuring { runs: 1, options: false, ..Measuring::default() };
    let mut told = 0;
    let found = rekindle::measure(&net.fine(), batch, measuring, &mut |_, _| told += 1).unwrap();
    // The first slice, whose state needs no gradient; the others; the last, whose backward is the first to make a gradient of what they all
    // share; and the head.
    assert_eq!(told, 4, "stages alike are measured once");
    found.into_profile(net.name(), "flex").unwrap()
}

#[test]
fn with_stages_of_the_square_root_the_peak_grows_as_the_square_root() {
    alone(|| {
        let net = net(8);
        step(&net, &net, &batch(64), Rule::EVERY_ONE.into());
        let peaks = LENGTHS.map(|steps| step(&net, &net, &batch(steps), Rule::EVERY_ONE.into()).1.get());
        for pair in peaks.windows(2) {
            assert!(pair[1] < pair[0] * 23 / 10, "four times as long, {peaks:?}");
        }
    });
}

#[test]
fn with_slots_of_the_logarithm_revolve_takes_little_more_for_four_times_the_length() {
    alone(|| {
        let net = net(8);
        step(&net, &net, &batch(64), Rule::EVERY_ONE.into());
        let mut peaks = Vec::new();
        let mut predicted = Vec::new();
        // Measured once: what a stage leaves behind depends on the tables that it happens to make grow.
        let longest = profile(&net, &batch(LENGTHS[LENGTHS.len() - 1]));
        for steps in LENGTHS {
            let batch = batch(steps);
            let stages = steps / 8 + 1;
            let (last, others) = longest.stages().split_last().unwrap();
            let own = others[..stages - 1].iter().chain([last]).cloned().collect();
            let profile =
                Profile::new(longest.model(), longest.device(), longest.input_bytes(), own).unwrap();
            let expected = step(&net, &net, &batch, Rule::EVERY_ONE.into()).0;
            for solver in [Solver::Revolve, Solver::Online] {
                let planner = Planner::new(Budget::free()).solver(solver).slots(stages.ilog2());
                let planned = planner.profile(profile.clone(), 0.0).plan(&net.fine(), &batch).unwrap();
                let (found, peak) = step(&net, &net.fine(), &batch, (&planned).into());
                assert!(found == expected, "{solver}, {steps} steps");
                if solver == Solver::Revolve {
                    peaks.push(peak.get());
                    predicted.push(planned.plan().predicted.peak_bytes.get());
                }
            }
        }
        // A state of 16 sequences: what a slot takes. Four times the length is two slots more.
        let state = 16 * 32 * 2 * 4;
        // While a long one runs steps again with all slots full, the gradient of the weights is there already; once, whatever the length.
        let weights =
            longest.stages().iter().map(|stage| stage.parameter_gradient_bytes.get()).max().unwrap();
        for (index, pair) in LENGTHS.windows(2).enumerate() {
            let (from, to) = (index, index + 1);
            assert!(predicted[to] <= predicted[from] + 3 * state + weights, "{predicted:?}");
            // What the region itself lists for a stage grows with their number.
            let stages = (pair[1] - pair[0]) as u64 / 8;
            assert!(peaks[to] <= peaks[from] + 3 * state + weights + stages * 3072, "{peaks:?}");
        }
    });
}

#[test]
fn an_optimal_plan_keeps_its_budget() {
    alone(|| {
        let (net, batch) = (net(8), batch(512));
        let (expected, _) = step(&net, &net, &batch, Rule::EVERY_ONE.into());
        let (_, plain) = step(&net, &net, &batch, Rule::StoreAll.into());
        let profile = profile(&net, &batch);
        for part in [0.5, 0.25] {
            let budget = Bytes::new((plain.get() as f64 * part) as u64);
            let planner = Planner::new(Budget::bytes(budget)).profile(profile.clone(), 0.0);
            let planned = planner.plan(&net.fine(), &batch).unwrap();
            let runs = [0, 1].map(|_| step(&net, &net.fine(), &batch, (&planned).into()));
            assert!(runs[0].0 == expected, "{part}");
            let peak = runs[0].1.max(runs[1].1);
            assert!(peak <= budget, "{part}: {peak} over {budget}");
        }
    });
}

/// Each stage captures its steps of the input: a view and no elements, of which nothing was predicted. A plan with few slots, whose
/// tensors take next to nothing here, took twice what was said. What Burn lists of a stage is known only roughly: here to a third.
#[test]
fn many_stages_with_few_slots_take_near_what_is_predicted() {
    alone(|| {
        device().seed(3);
        let net = RecurrentConfig::new(4, 32, 4).with_fine_steps(Some(10)).init(&device()).unwrap();
        let batch = Recall::new(4, 4000).unwrap().draw(8, &mut fastrand::Rng::with_seed(5), &device());
        let planner = Planner::new(Budget::of_plain(1.0).unwrap()).solver(Solver::Revolve).slots(8);
        let planned = planner.plan(&net.fine(), &batch).unwrap();
        // The first step has the actions of its plan once more.
        let [_, peak] = [0, 1].map(|_| step(&net, &net.fine(), &batch, (&planned).into()).1);
        let listed = planned.description().usual_bookkeeping();
        let predicted: Bytes = [planned.plan().predicted.peak_bytes, listed].into_iter().sum();
        let off = peak.get() as f64 / predicted.get() as f64 - 1.0;
        assert!(off.abs() <= 0.33, "{peak}, but {predicted} predicted");
    });
}

/// The gradients of the weights that all steps share are most of what a wide recurrence takes back through one of them. Counted as workspace
/// of every stage, and once more as what the last one leaves, they made predictions a third too high.
#[test]
fn a_wide_recurrence_takes_what_is_predicted() {
    alone(|| {
        device().seed(3);
        let net = RecurrentConfig::new(4, 256, 4).with_fine_steps(Some(4)).init(&device()).unwrap();
        let batch = Recall::new(4, 64).unwrap().draw(4, &mut fastrand::Rng::with_seed(5), &device());
        let cut = net.fine();
        let (expected, _) = step(&net, &net, &batch, Rule::EVERY_ONE.into());
        let measuring = Measuring { options: false, ..Measuring::steady() };
        let found = rekindle::measure(&cut, &batch, measuring, &mut |_, _| {}).unwrap();
        let profile = found.into_profile(net.name(), "flex").unwrap();
        for budget in [Budget::of_plain(0.75).unwrap(), Budget::smallest()] {
            let planned = Planner::new(budget).profile(profile.clone(), 0.0).plan(&cut, &batch).unwrap();
            let runs = [0, 1, 2].map(|_| step(&net, &cut, &batch, (&planned).into()));
            assert!(runs[0].0 == expected, "{budget}: gradients differ");
            let peak = runs.iter().map(|(_, peak)| *peak).max().unwrap();
            let within = planned.budget_bytes().unwrap();
            assert!(peak <= within, "{budget}: {peak} over {within}");
            let listed = planned.description().usual_bookkeeping();
            let predicted: Bytes = [planned.plan().predicted.peak_bytes, listed].into_iter().sum();
            let off = peak.get() as f64 / predicted.get() as f64 - 1.0;
            assert!(off.abs() <= 0.1, "{budget}: {peak}, but {predicted} predicted");
        }
    });
}
