//! Boundaries that are asked for while the stage behind them still goes back.

use std::collections::BTreeMap;

use rekindle_plan::{Action, Bytes, Name, Plan, Profile};

/// The plan with what is fetched from places that are `asynchronous` asked for one backward earlier, wherever `usable` bytes have room
/// for it that long. Solvers take what comes back from a codec for work of the device, and put it where it is needed; a store of
/// somebody's own may have it on its way meanwhile.
pub(super) fn fetched_ahead(
    plan: Plan,
    profile: &Profile,
    usable: Bytes,
    asynchronous: impl Fn(&Name) -> bool,
) -> Plan {
    moved(&plan, profile, usable, asynchronous).unwrap_or(plan)
}

fn moved(
    plan: &Plan,
    profile: &Profile,
    usable: Bytes,
    asynchronous: impl Fn(&Name) -> bool,
) -> Option<Plan> {
    let (_, simulation) = plan.judge(profile).ok()?;
    let mut peaks: Vec<u64> = simulation.moments.iter().map(|moment| moment.peak.get()).collect();
    // Which fetch goes before which backward.
    let mut earlier = BTreeMap::new();
    let mut backward = None;
    for (at, action) in plan.actions.iter().enumerate() {
        match action {
            Action::Backward { .. } => backward = Some(at),
            Action::Fetch { boundary, place } if asynchronous(place) => {
                let (Some(to), Some(bytes)) = (backward, profile.boundary_bytes(*boundary)) else { continue };
                let fits = |peak: &u64| peak.saturating_add(bytes.get()) <= usable.get();
                let Some(between) = peaks.get_mut(to..at) else { continue };
                if between.iter().all(fits) {
                    between.iter_mut().for_each(|peak| *peak += bytes.get());
                    earlier.insert(to, at);
                    // One at a time: what is fetched behind it is needed later.
                    backward = None;
                }
            }
            _ => {}
        }
    }
    if earlier.is_empty() {
        return None;
    }
    let stay = |at: &usize| !earlier.values().any(|fetch| fetch == at);
    let mut actions = Vec::with_capacity(plan.actions.len());
    for (at, action) in plan.actions.iter().enumerate() {
        actions.extend(earlier.get(&at).and_then(|fetch| plan.actions.get(*fetch)).cloned());
        if stay(&at) {
            actions.push(action.clone());
        }
    }
    let (solver, status) = (plan.solver.clone(), plan.status.clone());
    let mut made = Plan::judged(profile, solver, status, plan.budget_bytes, actions).ok()?;
    // What was proven of the time holds for the same time.
    made.predicted.lower_bound_ns = plan.predicted.lower_bound_ns;
    (made.predicted.step_ns == plan.predicted.step_ns && made.predicted.peak_bytes <= usable).then_some(made)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use rekindle_plan::{Codec, Nanos, StageProfile, Status};

    use super::*;

    const BOUNDARY: u64 = 1000;

    /// Three stages, the second of which is run again from what was kept in parts.
    fn parted() -> (Profile, Plan) {
        let stage = StageProfile {
            name: "s".into(),
            output_bytes: Bytes::new(BOUNDARY),
            tape_bytes: Bytes::new(8 * BOUNDARY),
            forward_ns: Nanos::new(10),
            backward_ns: Nanos::new(20),
            ..StageProfile::default()
        };
        let codec = Codec {
            name: "parts".parse().unwrap(),
            bytes_per_kibibyte: 512,
            compress_bytes_per_second: 1 << 30,
            restore_bytes_per_second: 1 << 30,
        };
        let profile = Profile::new("m", "d", Bytes::new(BOUNDARY), vec![stage; 3]).unwrap();
        let profile = profile.with_places(vec![], vec![codec]).unwrap();
        let text = "keep x0, forward 1, keep x1, forward 2, compress x1 parts, drop x1, tape 3, backward 3, \
                    fetch x1 parts, drop x1 parts, tape 2, backward 2, tape 1, drop x0, backward 1";
        let actions = text.split(", ").map(|line| line.parse().unwrap()).collect();
        let status = Status::Rule("by-hand".parse().unwrap());
        let plan = Plan::judged(&profile, "by hand".into(), status, None, actions).unwrap();
        (profile, plan)
    }

    #[test]
    fn a_fetch_goes_before_the_backward_before_it_if_there_is_room_and_not_for_a_byte_less() {
        let (profile, plan) = parted();
        let (_, simulation) = plan.judge(&profile).unwrap();
        let backward = plan.actions.iter().position(|action| action.to_string() == "backward 3").unwrap();
        let room = simulation.moments[backward].peak.get() + BOUNDARY;
        let ahead = |usable: u64| fetched_ahead(plan.clone(), &profile, Bytes::new(usable), |_| true);
        assert_eq!(ahead(room - 1), plan);
        let made = ahead(room);
        let words: Vec<String> = made.actions[7..11].iter().map(ToString::to_string).collect();
        assert_eq!(words, ["fetch x1 parts", "backward 3", "drop x1 parts", "tape 2"]);
        assert!(made.predicted.peak_bytes.get() <= room);
        assert_eq!(made.predicted.step_ns, plan.predicted.step_ns);
        // Codecs are work of the device, wherever they stand.
        assert_eq!(fetched_ahead(plan.clone(), &profile, Bytes::MAX, |_| false), plan);
    }
}
