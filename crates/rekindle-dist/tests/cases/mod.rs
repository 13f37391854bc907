//! The cases, and how a rank runs one.

mod collectives;
mod faults;
mod model;
mod overlapped;
mod partitioned;
mod pipelined;
mod replicated;
mod split;

use std::time::Duration;

use rekindle_dist::{Collective, Mpi, Patience};

/// How a case ends.
pub(crate) enum Ends {
    /// All ranks are through.
    Well,
    /// The whole run is ended, and somebody says which rank was lost and why: in these words, `{ranks}` being how many there are.
    Badly { saying: &'static [&'static str] },
}

pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) ends: Ends,
    run: fn(&Mpi),
}

/// A rank that does nothing for so long hangs, where a case is about that.
pub(crate) const HANGING: Duration = Duration::from_secs(4);
/// What a rank says before it is lost, and then the time, in milliseconds since 1970: the run has to end soon after that.
pub(crate) const LOST: &str = "lost at ";
/// How soon.
pub(crate) const SOON: Duration = Duration::from_secs(10);

const fn well(name: &'static str, run: fn(&Mpi)) -> Case {
    Case { name, ends: Ends::Well, run }
}

const fn badly(name: &'static str, saying: &'static [&'static str], run: fn(&Mpi)) -> Case {
    Case { name, ends: Ends::Badly { saying }, run }
}

pub(crate) const CASES: &[Case] = &[
    well("everything_arrives_whatever_its_size", collectives::everything_arrives),
    well("sums_are_ordered_by_rank_or_close_to_it", collectives::sums),
    well("groups_talk_among_themselves", collectives::groups),
    well("ranks_that_ask_for_different_things_are_told_so", collectives::out_of_step),
    well("ranks_that_send_to_each_other_do_not_wait_for_ever", collectives::both_send),
    well("a_plan_or_model_that_differs_is_refused_on_every_rank", replicated::refused),
    well("data_parallel_is_one_process_bit_for_bit", replicated::data_parallel),
    well("data_parallel_with_native_sums_is_close", replicated::native),
    well("zero_1_is_one_process_bit_for_bit", replicated::zero_1),
    well("zero_2_is_one_process_bit_for_bit", replicated::zero_2),
    well("zero_with_native_sums_is_close", replicated::native_zero),
    well("a_run_goes_on_from_what_it_knew_with_other_parts_and_other_ranks", replicated::restart),
    well("an_optimizer_has_its_part_of_the_state_alone", replicated::memory_of_zero),
    well("zero_2_has_no_more_of_the_sum_than_its_part", replicated::memory_of_sums),
    well("sums_that_are_under_way_while_the_backward_goes_on_have_the_same_bits", overlapped::one_process),
    well("native_sums_that_are_under_way_are_close", overlapped::native),
    well("a_gradient_that_comes_in_parts_is_not_added_up_too_early", overlapped::in_parts),
    well("a_rank_without_examples_takes_part_in_sums_under_way", overlapped::without_examples),
    well("a_parameter_that_one_rank_does_not_use_is_refused_on_every_rank", overlapped::unused_on_one_rank),
    well("sums_under_way_take_as_much_memory_as_is_said", overlapped::memory_under_way),
    well("zero_2_lets_go_of_gradients_while_the_backward_goes_on", overlapped::memory_of_a_part),
    well("a_pipeline_is_one_process_bit_for_bit", pipelined::one_process),
    well("data_parallel_pipelines_with_and_without_zero_are_one_process", pipelined::replicated),
    well("data_parallel_pipelines_with_native_sums_are_close", pipelined::native),
    well("a_pipeline_holds_as_many_micro_batches_as_is_said", pipelined::memory_in_flight),
    well("a_pipeline_waits_as_long_as_the_formula_says_within_5_percent", pipelined::bubble),
    well("a_pipeline_refuses_what_it_cannot_do", pipelined::refused),
    well("each_rank_keeps_its_part_of_a_boundary_to_the_byte", partitioned::to_the_byte),
    well("partitioned_checkpoints_save_memory_and_change_no_bit", partitioned::saves_memory),
    well("the_planner_partitions_where_that_is_needed", partitioned::planned),
    well("a_boundary_in_parts_is_on_its_way_while_the_stage_behind_it_goes_back", partitioned::ahead),
    well("a_model_in_parts_is_one_process_bit_for_bit", split::one_process),
    well("a_model_in_parts_has_the_same_gradients_under_every_plan", split::every_plan),
    well("a_model_in_parts_with_native_sums_is_close", split::native),
    well("a_model_in_parts_that_learns_with_native_sums_is_close", split::trained_natively),
    well("what_ranks_wait_for_each_other_is_in_the_cost_of_a_plan", split::cost),
    well("a_model_that_cannot_be_shared_out_is_refused", split::refused),
    badly(
        "a_rank_that_panics_ends_the_run",
        &["rank 1 of {ranks}: panicked", "a bug in somebody's model"],
        faults::panics,
    ),
    // These are `mpirun`'s words.
    badly("a_rank_that_is_killed_ends_the_run", &["process rank 1 ", "signal 9"], faults::is_killed),
    badly(
        "a_rank_that_is_stopped_ends_the_run",
        &["rank 1 of {ranks}: hangs: its process has been stopped for"],
        faults::is_stopped,
    ),
    badly(
        "a_rank_that_hangs_ends_the_run",
        &["rank 1 of {ranks}: hangs: it has asked for nothing for"],
        faults::hangs,
    ),
    badly(
        "a_rank_that_computes_for_ever_in_a_step_ends_the_run",
        &["rank 1 of {ranks}: hangs: it has asked for nothing for"],
        faults::computes_for_ever,
    ),
    badly(
        "a_rank_that_sleeps_ends_the_run",
        &["rank 1 of {ranks}: hangs: it sleeps, and has asked for nothing for"],
        faults::hangs,
    ),
    well("one_that_computes_for_longer_than_a_rank_sleeps_goes_on", faults::computes),
    badly(
        "a_message_that_nobody_sends_is_waited_for_in_vain_and_ends_the_run",
        &["rank 1 of {ranks}: waits in vain: what it asked for, `exchange`, has not come for"],
        faults::waits_in_vain,
    ),
    badly(
        "a_rank_that_gives_up_ends_the_run_with_its_reason",
        &["rank 1 of {ranks}: out of examples"],
        faults::gives_up,
    ),
];

/// Runs a case on this rank.
pub(crate) fn run(case: &Case) {
    let patience = match case.name {
        name if name.contains("sleeps") => Patience { asleep: Some(HANGING), ..Patience::default() },
        name if name.contains("stopped") => Patience { stopped: Some(HANGING), ..Patience::default() },
        name if name.contains("in_vain") => Patience { waiting: Some(HANGING), ..Patience::default() },
        name if name.contains("computes_for_ever") => Some(Duration::from_secs(600)).into(),
        name => name.contains("hangs").then_some(HANGING).into(),
    };
    let world = Mpi::start(patience).unwrap();
    (case.run)(&world);
    let (rank, size) = (world.rank(), world.size());
    drop(world);
    println!("well: rank {rank} of {size}");
}
