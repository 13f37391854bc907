//! Bad input is refused with words that help, before anything is computed wrongly, and never by hanging.

use std::cell::RefCell;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use burn::module::Module;
use burn::tensor::{Tensor, TensorData};
use rekindle::{
    Bytes, Checks, Error, NoModule, Plan, Profile, Region, Rule, Schedule, backward, checkpoint,
    expecting_hand_over,
};
use rekindle_plan::{Action, StageProfile};

use crate::common::*;

thread_local! {
    static SMUGGLED: RefCell<Option<Tensor<2>>> = const { RefCell::new(None) };
}

fn smuggles(_: &NoModule, x: Tensor<2>) -> Tensor<2> {
    x * SMUGGLED.with_borrow(|smuggled| smuggled.clone().unwrap())
}

#[test]
fn a_tracked_tensor_from_outside_is_found_in_the_forward() {
    let _alone = alone();
    let x = random([4, 8], &device()).require_grad();
    SMUGGLED.set(Some(x.clone() * 2.0));
    let error = checkpoint(&NoModule, x.clone(), smuggles).unwrap_err();
    assert!(matches!(error, Error::TrackedCapture { stage: 1, .. }), "{error}");
    // A tape would hide it, and going back through it would never end.
    let region = Region::new().stage("smuggler", &NoModule, smuggles).rule(Rule::StoreAll);
    let error = region.forward(x.clone()).unwrap_err();
    assert!(error.to_string().contains("stage 1 (`smuggler`) uses a tracked tensor"), "{error}");
    // Whoever tries again is refused again: this once passed, with the gradient lost.
    let region = Region::new().stage("smuggler", &NoModule, smuggles).rule(Rule::StoreAll);
    assert!(matches!(region.forward(x.clone()), Err(Error::TrackedCapture { .. })));
    // Detached, it is a constant.
    SMUGGLED.set(Some((x.clone() * 2.0).detach()));
    checkpoint(&NoModule, x, smuggles).unwrap();
}

/// What no error can end, because the stage waits for its own thread, ends the process; this once hung.
#[test]
#[cfg(target_os = "linux")]
fn a_tracked_tensor_that_is_reached_in_the_recomputation_alone_ends_the_process_with_words() {
    const INSIDE: &str = "REKINDLE_TEST_STALLS";
    if std::env::var_os(INSIDE).is_none() {
        let name =
            "errors::a_tracked_tensor_that_is_reached_in_the_recomputation_alone_ends_the_process_with_words";
        let mut again = std::process::Command::new(std::env::current_exe().unwrap());
        let output = again.args(["--exact", name, "--nocapture"]).env(INSIDE, "1").output().unwrap();
        let words = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(std::os::unix::process::ExitStatusExt::signal(&output.status), Some(6), "{words}");
        assert!(words.contains("rekindle: stage 2 (`smuggler`) uses a tracked tensor"), "{words}");
        return;
    }
    rekindle::give_up_after(Some(std::time::Duration::from_secs(1)));
    // A loader of data, say. While it works the limit is five times as long; the process was once never idle, and hung.
    std::thread::spawn(|| while std::hint::black_box(true) {});
    let x = random([4, 8], &device()).require_grad();
    SMUGGLED.set(Some((x.clone() * 2.0).detach()));
    let region = Region::new().stage("first", &NoModule, |_: &NoModule, x: Tensor<2>| x.sin());
    let region = region.stage("smuggler", &NoModule, smuggles);
    let y = region.stage("last", &NoModule, |_: &NoModule, x: Tensor<2>| x.sin()).forward(x.clone()).unwrap();
    SMUGGLED.set(Some(x * 2.0));
    y.sum().backward();
}

/// With checks on, the stage has a thread of its own, and whoever waits for it leaves with an error; so does the next one, and
/// training goes on after both.
#[test]
#[cfg(target_os = "linux")]
fn with_checks_a_tracked_tensor_that_is_reached_in_the_recomputation_alone_is_an_error() {
    static HIDDEN: Mutex<Option<Tensor<2>>> = Mutex::new(None);
    fn reaches(_: &NoModule, x: Tensor<2>) -> Tensor<2> {
        let hidden = HIDDEN.lock().unwrap().clone();
        x * hidden.unwrap()
    }
    let _alone = alone();
    rekindle::give_up_after(Some(std::time::Duration::from_secs(1)));
    let x = random([4, 8], &device()).require_grad();
    let forward = |rule: &str| {
        let constant = (x.clone() * 2.0).detach();
        *HIDDEN.lock().unwrap() = Some(constant.clone());
        let region = Region::new().stage("first", &NoModule, |_: &NoModule, x: Tensor<2>| x.sin());
        let region = region.stage("reaches", &NoModule, reaches);
        let region = region.stage("last", &NoModule, |_: &NoModule, x: Tensor<2>| x.sin());
        region.rule(rule.parse().unwrap()).checks(Checks::Checksums).forward(x.clone() * 1.0).unwrap().sum()
    };
    // Untracked for the next stage, and on a tape.
    for rule in ["full", "every-1"] {
        let loss = forward(rule);
        *HIDDEN.lock().unwrap() = Some(x.clone() * 2.0);
        let error = backward(&loss).err().unwrap();
        assert!(matches!(error, Error::TrackedCapture { stage: 2, .. }), "{rule}: {error}");
    }
    let loss = forward("full");
    *HIDDEN.lock().unwrap() = Some(x.clone() * 2.0);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| loss.backward())).err().unwrap();
    let words = panicked.downcast_ref::<String>().unwrap();
    assert!(words.contains("rekindle: stage 2 (`reaches`) uses a tracked tensor"), "{words}");
    rekindle::give_up_after(Some(std::time::Duration::from_secs(60)));
    let gradients = backward(&forward("full")).unwrap();
    let plain = rekindle::without_checkpointing(|| forward("full")).backward();
    assert_eq!(x.grad(&gradients).unwrap().into_data(), x.grad(&plain).unwrap().into_data());
}

/// One that works for longer than a stage may stand still is left alone.
#[test]
fn a_recomputation_that_takes_long_is_not_given_up() {
    static AGAIN: AtomicBool = AtomicBool::new(false);
    let _alone = alone();
    rekindle::give_up_after(Some(std::time::Duration::from_millis(300)));
    let x = random([4, 8], &device()).require_grad();
    let works = |_: &NoModule, x: Tensor<2>| {
        let start = std::time::Instant::now();
        while AGAIN.load(SeqCst) && start.elapsed() < std::time::Duration::from_secs(1) {
            std::hint::spin_loop();
        }
        x.sin()
    };
    let y = checkpoint(&NoModule, x.clone(), works).unwrap();
    AGAIN.store(true, SeqCst);
    let gradients = y.sum().backward();
    rekindle::give_up_after(Some(std::time::Duration::from_secs(60)));
    assert!(x.grad(&gradients).is_some());
}

#[test]
fn a_tracked_tensor_beside_the_input_is_refused() {
    let _alone = alone();
    let x = random([4, 8], &device()).require_grad();
    let run = |side: Tensor<2>| {
        let times = |_: &NoModule, x: Tensor<2>, side: Tensor<2>| x * side;
        let region = Region::new().stage_with("side", &NoModule, side, times);
        region.rule(Rule::StoreAll).forward(x.clone()).map(|_| ())
    };
    assert!(matches!(run(x.clone() * 2.0).unwrap_err(), Error::TrackedCapture { stage: 1, .. }));
    let plain = rekindle::without_checkpointing(|| run(x.clone() * 2.0));
    assert!(matches!(plain.unwrap_err(), Error::TrackedCapture { stage: 1, .. }));
    run((x.clone() * 2.0).detach()).unwrap();
}

/// The first step smuggles a constant, the second (which is not looked at) a tracked tensor. Its tape shares a graph
/// with the user's, whose lock Burn holds in the backward: this once waited for itself.
#[test]
fn a_tracked_tensor_that_comes_in_later_is_an_error_and_not_a_hang() {
    let _alone = alone();
    fn later(_: &NoModule, x: Tensor<2>) -> Tensor<2> {
        smuggles(&NoModule, x)
    }
    let x = random([4, 8], &device()).require_grad();
    let step = |tracked: bool| -> Result<_, Error> {
        let hidden = x.clone() * 3.0;
        let smuggled = hidden.clone() * 2.0;
        SMUGGLED.set(Some(if tracked { smuggled } else { smuggled.detach() }));
        let region = Region::new().stage("later", &NoModule, later).rule(Rule::StoreAll);
        let gradients = backward(&region.forward(hidden)?.sum())?;
        Ok(x.grad(&gradients).unwrap().into_data())
    };
    expecting_hand_over(|| step(false)).unwrap();
    let error = expecting_hand_over(|| step(true)).unwrap_err();
    assert!(matches!(error, Error::TrackedCapture { stage: 1, .. }), "{error}");
    expecting_hand_over(|| step(false)).unwrap();
    // On the user's own graph nothing waits, and no gradient is lost.
    assert_eq!(step(true).unwrap(), rekindle::without_checkpointing(|| step(true)).unwrap());
    assert_ne!(step(true).unwrap(), step(false).unwrap());
}

/// A leaf that nobody else uses has a graph of its own, which is not the user's. Its gradient was once lost, without a word, wherever
/// the stage's tape was kept in a graph of its own and the stage was not one to look at.
#[test]
fn a_leaf_that_comes_in_later_is_an_error_and_its_gradient_not_lost() {
    fn later(_: &NoModule, x: Tensor<2>) -> Tensor<2> {
        smuggles(&NoModule, x)
    }
    let _alone = alone();
    let x = random([4, 8], &device()).require_grad();
    let leaf = random([4, 8], &device()).require_grad();
    let step = || {
        let region = Region::new().stage("leaf", &NoModule, later).rule(Rule::StoreAll);
        backward(&region.forward(x.clone())?.sum())
    };
    SMUGGLED.set(Some(random([4, 8], &device())));
    expecting_hand_over(step).unwrap();
    SMUGGLED.set(Some(leaf.clone()));
    let error = expecting_hand_over(step).err().unwrap();
    assert!(matches!(&error, Error::TrackedCapture { stage: 1, name } if name == "leaf"), "{error}");
    // On the user's graph it has its gradient.
    assert!(leaf.grad(&step().unwrap()).is_some());
}

/// Burn's backward holds no lock on a graph that the leaf has to itself.
#[test]
fn a_leaf_that_is_reached_in_the_recomputation_alone_is_an_error() {
    let _alone = alone();
    let x = random([4, 8], &device()).require_grad();
    let leaf = random([4, 8], &device()).require_grad();
    SMUGGLED.set(Some(random([4, 8], &device())));
    let y = checkpoint(&NoModule, x.clone(), smuggles).unwrap();
    SMUGGLED.set(Some(leaf));
    let error = backward(&y.sum()).err().unwrap();
    assert!(matches!(error, Error::TrackedCapture { stage: 1, .. }), "{error}");
}

/// The first output has nothing to do with the user's graph, the second does. Only the first was once looked at, and the
/// backward waited for itself.
#[test]
fn a_tracked_tensor_in_the_second_output_is_an_error_and_not_a_hang() {
    fn second(_: &NoModule, (a, b): (Tensor<2>, Tensor<2>)) -> (Tensor<2>, Tensor<2>) {
        (a.sin(), smuggles(&NoModule, b))
    }
    let _alone = alone();
    let x = random([4, 8], &device()).require_grad();
    let step = |tracked: bool| {
        let hidden = x.clone() * 3.0;
        let smuggled = hidden.clone() * 2.0;
        SMUGGLED.set(Some(if tracked { smuggled } else { smuggled.detach() }));
        let region = Region::new().stage("second", &NoModule, second).rule(Rule::StoreAll);
        let (a, b) = region.forward((hidden, x.clone() * 2.0))?;
        backward(&(a.sum() + b.sum()))
    };
    expecting_hand_over(|| step(false)).unwrap();
    let error = expecting_hand_over(|| step(true)).err().unwrap();
    assert!(matches!(error, Error::TrackedCapture { stage: 1, .. }), "{error}");
}

#[derive(Module, Debug)]
struct WithConstant {
    constant: Tensor<2>,
}

#[test]
fn a_tracked_tensor_in_a_field_of_the_module_is_found() {
    let _alone = alone();
    let x = random([4, 8], &device()).require_grad();
    let module = WithConstant { constant: x.clone() * 2.0 };
    let use_it = |module: &WithConstant, x: Tensor<2>| x * module.constant.clone();
    for rule in [Rule::Full, Rule::StoreAll] {
        let region = Region::new().stage("constant", &module, use_it).rule(rule);
        let error = region.forward(x.clone()).unwrap_err();
        assert!(matches!(error, Error::TrackedCapture { .. }), "{rule}: {error}");
    }
}

#[test]
fn a_plan_of_another_length_is_refused_before_anything_runs() {
    let _alone = alone();
    static RAN: AtomicBool = AtomicBool::new(false);
    fn runs(_: &NoModule, x: Tensor<2>) -> Tensor<2> {
        RAN.store(true, SeqCst);
        x
    }
    let x = random([4, 8], &device()).require_grad();
    let profile = Profile::unmeasured((0..3).map(|i| i.to_string()), &[]).unwrap();
    let plan = Plan::by_rule(&profile, Rule::EVERY_ONE, None).unwrap();
    let (schedule, _) = Schedule::judge(&profile, &plan.actions).unwrap();
    let region = || Region::new().stages("stage", &vec![NoModule; 4], runs);
    for region in [
        region().plan(plan.clone()),
        region().plan_for(plan.clone(), profile.clone()),
        region().schedule(schedule),
    ] {
        let error = region.forward(x.clone()).unwrap_err();
        assert!(matches!(error, Error::PlanLength { plan: 3, region: 4 }), "{error}");
    }
    let error = Region::new().stages("stage", &[], runs).plan(plan.clone()).forward(x.clone()).unwrap_err();
    assert!(matches!(error, Error::PlanLength { plan: 3, region: 0 }), "{error}");
    // The right length, but not a plan.
    let mut broken = plan.clone();
    broken.actions.retain(|action| !matches!(action, Action::Keep { .. }));
    let error =
        Region::new().stages("stage", &vec![NoModule; 3], runs).plan(broken).forward(x.clone()).unwrap_err();
    assert!(error.to_string().contains("is not on the device"), "{error}");
    // A plan over its own budget, and one for another model.
    let mut tight = plan.clone();
    tight.budget_bytes = Some(Bytes::ZERO);
    let big = StageProfile {
        name: "0".to_owned(),
        output_bytes: Bytes::new(1),
        tape_bytes: Bytes::new(1),
        ..StageProfile::default()
    };
    let other = Profile::new("other", "flex", Bytes::new(1), vec![big; 3]).unwrap();
    let error = Region::new()
        .stages("stage", &vec![NoModule; 3], runs)
        .plan_for(tight, other)
        .forward(x)
        .unwrap_err();
    assert!(error.to_string().contains("fingerprint"), "{error}");
    assert!(!RAN.load(SeqCst));
}

#[test]
fn a_place_or_an_option_that_is_not_there_is_named() {
    let _alone = alone();
    let x = random([4, 8], &device()).require_grad();
    let names = || (0..2).map(|i| i.to_string());
    let plan = |text: &str| {
        let profile = Profile::unmeasured(names(), &[]).unwrap();
        let mut plan = Plan::by_rule(&profile, Rule::StoreAll, None).unwrap();
        plan.actions = text.split('/').map(|line| line.parse().unwrap()).collect();
        plan
    };
    let run = |text: &str| {
        let region = Region::new().stages("stage", &vec![NoModule; 2], |_: &NoModule, x: Tensor<2>| x.tanh());
        region.plan(plan(text)).forward(x.clone()).unwrap_err().to_string()
    };
    assert!(
        run("tape 1 turbo/tape 2/backward 2/backward 1")
            .contains("no option `turbo`, expected one of: balanced")
    );
    assert!(run("keep x0/forward 1/offload x0 host/drop x0/tape 2/backward 2").contains("no tier `host`"));
    // An option that a schedule's profile had, but Burn has not.
    let profile = Profile::unmeasured(names(), &["turbo".parse().unwrap()]).unwrap();
    let actions = plan("tape 1 turbo/tape 2/backward 2/backward 1").actions;
    let (schedule, _) = Schedule::judge(&profile, &actions).unwrap();
    let region = Region::new().stages("stage", &vec![NoModule; 2], |_: &NoModule, x: Tensor<2>| x.tanh());
    let error = region.schedule(schedule).forward(x.clone()).unwrap_err();
    assert!(matches!(error, Error::UnknownOption { stage: 1, .. }), "{error}");
}

#[test]
fn host_memory_that_is_too_small_leaves_the_boundary_on_the_device() {
    let _alone = alone();
    let x = random([4, 8], &device()).require_grad();
    let tier = rekindle_plan::Tier {
        name: "host".parse().unwrap(),
        capacity_bytes: Bytes::MAX,
        write_bytes_per_second: 1,
        read_bytes_per_second: 1,
    };
    let profile = Profile::unmeasured((0..2).map(|i| i.to_string()), &[]).unwrap();
    let profile = profile.with_places(vec![tier], vec![]).unwrap();
    let text = "keep x0/forward 1/offload x0 host/drop x0/tape 2/backward 2/fetch x0 host/drop x0 host/tape 1/backward 1";
    let actions: Vec<Action> = text.split('/').map(|line| line.parse().unwrap()).collect();
    let (schedule, _) = Schedule::judge(&profile, &actions).unwrap();
    let region = || {
        Region::new()
            .stages("stage", &vec![NoModule; 2], |_: &NoModule, x: Tensor<2>| x.tanh())
            .schedule(schedule.clone())
    };
    let gradient = |host: u64| {
        let y = region().host(Bytes::new(host)).forward(x.clone()).unwrap();
        bytes(&x.grad(&backward(&y.sum()).unwrap()).unwrap())
    };
    assert_eq!(gradient(127), gradient(128));
    let error = region().forward(x.clone()).unwrap_err();
    assert!(error.to_string().contains("needs a store named `host`"), "{error}");
}

#[test]
fn a_loss_that_is_not_tracked_is_an_error() {
    let _alone = alone();
    let error = backward(&Tensor::<1>::ones([1], &device())).err().unwrap();
    assert!(matches!(error, Error::Untracked), "{error}");
}

#[test]
fn a_second_backward_through_one_graph_is_an_error() {
    let _alone = alone();
    let x = random([4, 8], &device()).require_grad();
    let loss = checkpoint(&NoModule, x, |_: &NoModule, x: Tensor<2>| x.tanh()).unwrap().sum();
    backward(&loss).unwrap();
    let error = backward(&loss).err().unwrap();
    assert!(error.to_string().contains("already been consumed"), "{error}");
}

#[test]
fn a_stage_that_fails_hands_its_error_out() {
    let _alone = alone();
    let x = random([4, 8], &device()).require_grad();
    let outer = |_: &NoModule, x: Tensor<2>| -> Result<Tensor<2>, Error> {
        let region = Region::new().stages("inner", &vec![NoModule; 2], |_: &NoModule, x: Tensor<2>| x.tanh());
        let profile = Profile::unmeasured((0..3).map(|i| i.to_string()), &[]).unwrap();
        region.plan(Plan::by_rule(&profile, Rule::StoreAll, None)?).forward(x)
    };
    let error = checkpoint(&NoModule, x, outer).unwrap_err();
    assert!(matches!(error, Error::PlanLength { .. }), "{error}");
}

#[test]
fn more_actions_than_can_be_held_are_refused() {
    let _alone = alone();
    let x = Tensor::<1>::from_data(TensorData::from([1.0f32]), &device()).require_grad();
    let stages = vec![NoModule; 6000];
    let region = Region::new().stages("stage", &stages, |_: &NoModule, x: Tensor<1>| x);
    let error = region.rule(Rule::Full).forward(x).unwrap_err();
    assert!(error.to_string().contains("try `sqrt`"), "{error}");
}
