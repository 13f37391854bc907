//! Recurrences under every kind of plan: the same bits, and a memory over the whole length.

use burn::module::Module;
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::{Device, Tensor};
use rekindle::{Budget, Error, Planner, Rule, without_checkpointing};
use rekindle_models::data::{Recall, Source};
use rekindle_models::{
    Batch, ConfigError, Recurrent, RecurrentConfig, RecurrentKind, SequenceBatch, Trainable,
};
use rekindle_plan::solvers::{Solver, online, revolve};

use crate::common::{alone, device};
use crate::step::{bits, step};

const KINDS: [RecurrentKind; 2] = [RecurrentKind::Lstm, RecurrentKind::Gru];

fn net(config: &RecurrentConfig) -> Recurrent {
    device().seed(3);
    config.init(&device()).unwrap()
}

fn config(kind: RecurrentKind) -> RecurrentConfig {
    RecurrentConfig::new(4, 6, 4).with_kind(kind)
}

fn batch(examples: usize, steps: usize, seed: u64) -> SequenceBatch {
    Recall::new(4, steps).unwrap().draw(examples, &mut fastrand::Rng::with_seed(seed), &device())
}

fn plain(net: &Recurrent, batch: &SequenceBatch) -> Vec<Vec<u8>> {
    without_checkpointing(|| step(net, net, batch, Rule::StoreAll.into())).unwrap()
}

#[test]
fn gradients_are_those_of_plain_training_under_every_rule_and_however_steps_are_cut() {
    alone(|| {
        for (kind, parameters) in KINDS.into_iter().zip([4, 6]) {
            let batch = batch(3, 23, 5);
            let expected = plain(&net(&config(kind)), &batch);
            assert_eq!(expected.iter().filter(|gradient| !gradient.is_empty()).count(), 1 + parameters);
            for (coarse, fine) in
                [(None, None), (Some(1), Some(1)), (Some(7), Some(3)), (Some(100), Some(23))]
            {
                let net = net(&config(kind).with_steps(coarse).with_fine_steps(fine));
                for rule in ["store-all", "every-1", "every-3", "sqrt", "full"] {
                    let rule: Rule = rule.parse().unwrap();
                    let found = step(&net, &net, &batch, rule.into()).unwrap();
                    assert!(found == expected, "{kind:?}, {coarse:?} steps, {rule}");
                    let found = step(&net, &net.fine(), &batch, rule.into()).unwrap();
                    assert!(found == expected, "{kind:?}, {fine:?} fine steps, {rule}");
                }
            }
        }
    });
}

#[test]
fn gradients_are_those_of_plain_training_under_plans_of_every_solver() {
    alone(|| {
        for kind in KINDS {
            let (net, batch) = (net(&config(kind).with_fine_steps(Some(2))), batch(3, 41, 5));
            let expected = plain(&net, &batch);
            // 21 slices and the head.
            let stages = 22;
            let generous = Budget::of_plain(10.0).unwrap();
            let slots = [
                (Solver::Revolve, 4, revolve::forwards(stages, 4)),
                (Solver::Revolve, 1, revolve::forwards(stages, 1)),
                (Solver::Online, 4, online::actions(stages, 4).ok().map(|actions| forwards(&actions))),
                (Solver::Online, 2, online::actions(stages, 2).ok().map(|actions| forwards(&actions))),
            ];
            for (solver, slots, expected_forwards) in slots {
                let planner = Planner::new(generous).solver(solver).slots(slots);
                let planned = planner.plan(&net.fine(), &batch).unwrap();
                assert_eq!(Some(planned.plan().predicted.forwards), expected_forwards, "{solver}, {slots}");
                let found = step(&net, &net.fine(), &batch, (&planned).into()).unwrap();
                assert!(found == expected, "{kind:?}, {solver}, {slots} slots");
            }
            for budget in [Budget::smallest(), Budget::of_plain(0.95).unwrap()] {
                let planned = Planner::new(budget).plan(&net.fine(), &batch).unwrap();
                let found = step(&net, &net.fine(), &batch, (&planned).into()).unwrap();
                assert!(found == expected, "{kind:?}, {budget}");
            }
        }
    });
}

/// The stage forwards in a schedule, taped ones included.
fn forwards(actions: &[rekindle_plan::Action]) -> u64 {
    let runs = |action: &&rekindle_plan::Action| {
        ["forward", "tape"].iter().any(|word| action.to_string().starts_with(word))
    };
    actions.iter().filter(runs).count() as u64
}

#[test]
fn a_truncated_backward_has_the_same_loss_and_another_gradient() {
    alone(|| {
        for kind in KINDS {
            // It remembers all steps, or what the first does to the last would be rounded away.
            let (net, batch) = (net(&config(kind).with_memory(Some(90))), batch(3, 90, 5));
            let expected = plain(&net, &batch);
            let truncated = |steps| bits(&net, &net.loss_truncated(&batch, steps).unwrap()).unwrap();
            for all in [90, 91, usize::MAX] {
                assert!(truncated(all) == expected, "{kind:?}: nothing is cut off");
            }
            for steps in [0, 1, 10, 89] {
                let found = truncated(steps);
                assert!(found[0] == expected[0], "{kind:?}, {steps}: the loss is exact");
                assert!(found != expected, "{kind:?}, {steps}: the gradient is not");
            }
        }
    });
}

/// Trains, and tells the first and the last loss and how much is right of what was not seen.
fn train(
    config: &RecurrentConfig,
    length: usize,
    steps: u64,
    loss: impl Fn(&Recurrent, &SequenceBatch) -> Result<Tensor<1>, Error>,
) -> (f32, f32, f64) {
    let mut net = net(config);
    let mut optimizer = AdamConfig::new().init();
    rekindle::seed(1);
    let mut losses = Vec::new();
    for step in 0..steps {
        let loss = loss(&net, &batch(16, length, 100 + step)).unwrap();
        let found = GradientsParams::from_grads(rekindle::backward(&loss).unwrap(), &net);
        net = optimizer.step(1e-2, net, found);
        losses.push(loss.into_scalar::<f32>());
    }
    let unseen = batch(256, length, 7).to_device(&Device::flex());
    (losses[0], losses[losses.len() - 1], net.valid().accuracy(&unseen).unwrap())
}

#[test]
fn it_remembers_from_the_first_step_to_the_last_under_checkpoints() {
    alone(|| {
        for kind in KINDS {
            let config = RecurrentConfig::new(4, 16, 4).with_kind(kind).with_memory(Some(50));
            let (first, last, right) = train(&config, 50, 120, |net, batch| net.loss(batch, Rule::EVERY_ONE));
            assert!(last < first / 4.0 && right > 0.9, "{kind:?}: {first} to {last}, {right}");
        }
    });
}

#[test]
fn it_does_not_learn_what_a_truncated_backward_does_not_see() {
    alone(|| {
        let config = RecurrentConfig::new(4, 16, 4).with_memory(Some(50));
        let (first, last, right) = train(&config, 50, 120, |net, batch| net.loss_truncated(batch, 10));
        assert!(last > first / 2.0 && right < 0.6, "{first} to {last}, {right}");
    });
}

#[test]
fn sequences_of_no_steps_have_a_loss_all_the_same() {
    alone(|| {
        let net = net(&config(RecurrentKind::Lstm));
        let mut nothing = batch(2, 1, 5);
        nothing.sequences = nothing.sequences.slice_dim(1, 0..0);
        let found = step(&net, &net, &nothing, Rule::EVERY_ONE.into()).unwrap();
        assert!(found == plain(&net, &nothing));
        let (region, state) = net.fine_stages(&batch(2, 5, 5));
        assert!(region.rule(Rule::EVERY_ONE).forward(state).is_ok());
    });
}

#[test]
fn sizes_of_nothing_are_refused() {
    let refused = |config: RecurrentConfig| match config.init(&device()) {
        Err(ConfigError::Empty { what }) => what,
        _ => "",
    };
    let config = || RecurrentConfig::new(1, 1, 1);
    assert_eq!(refused(RecurrentConfig::new(0, 1, 1)), "features");
    assert_eq!(refused(RecurrentConfig::new(1, 0, 1)), "width");
    assert_eq!(refused(RecurrentConfig::new(1, 1, 0)), "classes");
    assert_eq!(refused(config().with_steps(Some(0))), "steps");
    assert_eq!(refused(config().with_fine_steps(Some(0))), "fine steps");
    assert_eq!(refused(config()), "");
    assert!(matches!(Recall::new(0, 3), Err(ConfigError::Empty { what: "classes" })));
    assert!(matches!(Recall::new(3, 0), Err(ConfigError::Empty { what: "steps" })));
}
