//! `mpirun rekindle train`, in real processes: what ranks come to is what one process comes to, bit for bit.
//!
//! ```sh
//! cargo test --workspace --features rekindle-cli/mpi --test over_ranks
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "a test")]

use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Small models, and a learning rate that moves them.
const SMALL: &str = "--layers 4 --width 32 --heads 2 --sequence 32 --batch 4 --steps 10";

/// What is done in a folder of its own.
type Test = fn(&Path);

fn main() -> ExitCode {
    let tests: &[(&str, Test)] = &[
        ("every_way_to_share_out_is_one_process_bit_for_bit", every_way),
        ("every_model_goes_through_a_pipeline", every_model),
        ("parts_of_layers_are_the_same_under_every_plan_and_with_every_other_way", parts_of_layers),
        ("parts_of_layers_take_parts_of_the_memory", memory_of_parts),
        ("budgets_are_each_ranks_own_and_are_kept", budgets),
        ("peaks_are_what_was_predicted_whatever_is_added_up", predicted),
        ("a_run_goes_on_with_other_ranks", goes_on),
        ("a_run_goes_on_from_its_last_snapshot_after_a_rank_was_killed", goes_on_after_a_loss),
        ("what_ranks_do_not_do_is_refused_once", refused),
        ("ranks_that_are_started_differently_are_refused", differently),
        ("what_cannot_be_read_is_told_once_whoever_was_given_it", not_read),
        ("a_rank_that_is_stopped_ends_the_run_within_ten_seconds", stopped),
        ("a_rank_that_is_killed_ends_the_run_within_ten_seconds", killed),
        ("native_sums_are_close", native),
    ];
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        tests.iter().for_each(|(name, _)| println!("{name}: test"));
        return ExitCode::SUCCESS;
    }
    let wanted = arguments.iter().find(|argument| !argument.starts_with('-'));
    let mut failed = 0;
    let chosen: Vec<_> =
        tests.iter().filter(|(name, _)| wanted.is_none_or(|wanted| name.contains(wanted.as_str()))).collect();
    for (name, test) in &chosen {
        let folder = tempfile::tempdir().unwrap();
        let ended = std::panic::catch_unwind(|| test(folder.path()));
        failed += u32::from(ended.is_err());
        println!("test {name} ... {}", if ended.is_ok() { "ok" } else { "FAILED" });
    }
    let result = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {result}. {} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
        chosen.len() as u32 - failed
    );
    ExitCode::from(u8::from(failed > 0))
}

/// Runs the command on so many ranks; on none, without `mpirun`.
fn rekindle(folder: &Path, ranks: usize, arguments: &str) -> Output {
    command(folder, ranks, arguments).output().expect("`mpirun` starts; Debian's package is openmpi-bin")
}

fn command(folder: &Path, ranks: usize, arguments: &str) -> Command {
    let own = env!("CARGO_BIN_EXE_rekindle");
    let mut command = match ranks {
        0 => Command::new(own),
        _ => {
            let mut command = Command::new("mpirun");
            command.args([
                "--allow-run-as-root",
                "--oversubscribe",
                "--timeout",
                "240",
                "-n",
                &ranks.to_string(),
                own,
            ]);
            command
        }
    };
    command
        .args(arguments.split_whitespace())
        .current_dir(folder)
        // Ranks share this machine: a thread each, and no reading of each other's memory, which containers forbid.
        .env("RAYON_NUM_THREADS", "1")
        .env("OMPI_MCA_btl_vader_single_copy_mechanism", "none")
        .env("OMPI_MCA_mpi_yield_when_idle", "1");
    command
}

fn said(output: &Output) -> String {
    let all = [output.stdout.as_slice(), &output.stderr].concat();
    String::from_utf8_lossy(&all).into_owned()
}

fn well(folder: &Path, ranks: usize, arguments: &str) -> String {
    let output = rekindle(folder, ranks, arguments);
    assert!(output.status.success(), "{ranks} ranks, {arguments}:\n{}", said(&output));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The weights after a run.
fn weights(folder: &Path, ranks: usize, arguments: &str) -> Vec<u8> {
    well(folder, ranks, &format!("{arguments} --save weights.safetensors"));
    std::fs::read(folder.join("weights.safetensors")).unwrap()
}

fn every_way(folder: &Path) {
    // Two parts, each of which draws its own numbers, added up in order: in one process, and in all of these.
    let expected = weights(folder, 0, &format!("train {SMALL} --strategy every-1 --micro-batches 2"));
    let other = weights(folder, 0, &format!("train {SMALL} --strategy every-1 --micro-batches 2 --seed 5"));
    assert!(expected != other, "weights tell runs apart");
    for (ranks, flags) in [
        (2, "--data-parallel 2"),
        (2, "--data-parallel 2 --zero 1 --budget 80%"),
        (2, "--data-parallel 2 --zero 2 --strategy sqrt"),
        (2, "--pipeline 2 --micro-batches 2 --strategy every-1"),
        (2, "--pipeline 2 --micro-batches 2 --strategy store-all"),
        (2, "--pipeline 2 --micro-batches 2 --budget 95% --zero 1"),
        (4, "--pipeline 4 --micro-batches 2 --budget 100%"),
        (4, "--data-parallel 2 --pipeline 2 --zero 0 --strategy every-1"),
        (4, "--data-parallel 2 --pipeline 2 --zero 1 --partition-checkpoints --budget 64MiB"),
        (4, "--data-parallel 2 --pipeline 2 --zero 2 --budget 100%"),
    ] {
        let found = weights(folder, ranks, &format!("train {SMALL} {flags}"));
        assert!(found == expected, "{ranks} ranks, {flags}");
    }
    // As many parts as there are replicas.
    let of_four = weights(folder, 0, &format!("train {SMALL} --strategy every-1 --micro-batches 4"));
    assert!(of_four != expected, "four parts are added up otherwise than two");
    for flags in
        ["--data-parallel 4", "--data-parallel 4 --zero 1 --budget 90%", "--data-parallel 4 --zero 2"]
    {
        assert!(weights(folder, 4, &format!("train {SMALL} {flags}")) == of_four, "4 ranks, {flags}");
    }
    for rank in 0..4 {
        let log = std::fs::read_to_string(folder.join(format!("rekindle-ranks/rank-{rank}.log"))).unwrap();
        assert!(log.contains(&format!("rank {rank} of 4")) && log.contains("step 10 loss"), "{log}");
    }
}

fn every_model(folder: &Path) {
    for model in [
        "--model llama --layers 3 --width 32 --heads 2 --sequence 32 --batch 4",
        "--model vit --layers 3 --width 32 --heads 2 --batch 4",
        "--model resnet --layers 11 --width 4 --batch 4",
    ] {
        let train = format!("train {model} --steps 2 --micro-batches 2");
        let expected = weights(folder, 0, &format!("{train} --strategy every-1"));
        let found = weights(folder, 2, &format!("{train} --strategy every-1 --pipeline 2"));
        assert!(found == expected, "{model}");
    }
    for (model, words) in [
        ("--model two-tower --batch 4 --data-parallel 2", "the loss of this model is of a whole batch"),
        (
            "--model lstm --width 8 --sequence 400 --batch 4 --pipeline 2 --strategy every-1",
            "would share a parameter",
        ),
    ] {
        let output = rekindle(folder, 2, &format!("train {model} --steps 2"));
        assert_eq!(output.status.code(), Some(2), "{}", said(&output));
        assert!(said(&output).contains(words), "{}", said(&output));
    }
    let recurrent = "train --model gru --width 8 --sequence 6 --batch 4 --steps 2 --strategy every-1";
    let expected = weights(folder, 0, &format!("{recurrent} --micro-batches 2"));
    assert!(weights(folder, 2, recurrent) == expected, "two replicas of a recurrence");
}

/// What lies in a file of weights behind its header.
fn numbers(file: &[u8]) -> Vec<f32> {
    let header = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    file[8 + header..].as_chunks::<4>().0.iter().copied().map(f32::from_le_bytes).collect()
}

fn parts_of_layers(folder: &Path) {
    let train = |flags: &str| format!("train {SMALL} {flags}");
    let alone = weights(folder, 0, &train("--strategy every-1 --micro-batches 2"));
    let expected = weights(folder, 2, &train("--tensor-parallel 2 --strategy store-all --micro-batches 2"));
    assert!(expected != alone, "sums are grouped otherwise");
    let (found, whole) = (numbers(&expected), numbers(&alone));
    assert_eq!(found.len(), whole.len(), "the parts of all ranks are saved");
    // Attention drops other scores on the second rank, so only so close. Adam moves each weight by 0.001 a step.
    let apart = found.iter().zip(&whole).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(apart < 0.015, "{apart}");
    for (ranks, flags) in [
        (2, "--tensor-parallel 2 --micro-batches 2 --strategy full"),
        (2, "--tensor-parallel 2 --micro-batches 2 --budget 70%"),
        (2, "--tensor-parallel 2 --micro-batches 2 --budget smallest --partition-checkpoints"),
        (2, "--tensor-parallel 2 --micro-batches 2 --budget 70% --cut parts"),
        (4, "--tensor-parallel 2 --data-parallel 2 --zero 1 --budget 90%"),
        (4, "--tensor-parallel 2 --data-parallel 2 --zero 2 --budget smallest --partition-checkpoints"),
        (4, "--tensor-parallel 2 --pipeline 2 --micro-batches 2 --budget 100%"),
        (8, "--tensor-parallel 2 --pipeline 2 --data-parallel 2 --zero 1 --budget 100%"),
    ] {
        let found = weights(folder, ranks, &train(flags));
        assert!(found == expected, "{ranks} ranks, {flags}");
    }
    // Without dropout they are as close as sums in another order.
    let [found, whole] =
        [(2, "--tensor-parallel 2 --dropout 0"), (0, "--dropout 0")].map(|(ranks, flags)| {
            numbers(&weights(folder, ranks, &format!("train {SMALL} --strategy every-1 {flags}")))
        });
    let apart = found.iter().zip(&whole).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(apart < 5e-4, "{apart}");
    // Snapshots know nothing of who had which part.
    let steps = |steps: u32, flags: &str| {
        let of = "--layers 4 --width 32 --heads 2 --sequence 32 --batch 4 --strategy every-1";
        format!("train {of} --steps {steps} {flags}")
    };
    let expected = weights(folder, 2, &steps(6, "--tensor-parallel 2 --micro-batches 2"));
    well(folder, 4, &steps(3, "--tensor-parallel 2 --data-parallel 2 --zero 2 --snapshots run"));
    let found =
        weights(folder, 2, &steps(6, "--tensor-parallel 2 --micro-batches 2 --snapshots run --resume"));
    assert!(found == expected, "four ranks, then two");
    well(folder, 1, &steps(7, "--data-parallel 1 --micro-batches 2 --snapshots run --resume"));
}

fn memory_of_parts(folder: &Path) {
    let train =
        "train --layers 6 --width 64 --heads 4 --sequence 256 --batch 8 --steps 3 --cut blocks --json";
    let json = |ranks: usize, flags: &str| -> Value {
        serde_json::from_str(&well(folder, ranks, &format!("{train} {flags}"))).unwrap()
    };
    let number = |of: &Value, rank: usize, what: &str| of["ranks"][rank][what].as_u64().unwrap();
    let one = json(1, "--tensor-parallel 1 --budget smallest");
    let two = json(2, "--tensor-parallel 2 --budget smallest");
    let parted = json(2, "--tensor-parallel 2 --budget smallest --partition-checkpoints");
    assert_eq!(two["tensor_parallel"], 2);
    for run in [&two, &parted] {
        for rank in 0..2 {
            let (peak, budget) = (number(run, rank, "peak_bytes"), number(run, rank, "budget_bytes"));
            assert!(peak <= budget, "rank {rank}: {peak} of {budget}");
        }
        let both = number(run, 0, "weights_bytes") + number(run, 1, "weights_bytes");
        let whole = number(&one, 0, "weights_bytes");
        // Embedding, norms and head are on both.
        assert!(whole < both && both < whole * 13 / 10, "{both} of {whole}");
    }
    // Half of each tape.
    let peak = |of: &Value| number(of, 0, "peak_bytes");
    assert!(peak(&two) < peak(&one) * 7 / 10, "{} of {}", peak(&two), peak(&one));
    // And half of boundaries: what the smallest budget has no room to keep whole.
    assert_eq!(number(&two, 0, "partitioned"), 0);
    assert!(number(&parted, 0, "partitioned") > 0 && number(&parted, 1, "partitioned") > 0, "{parted}");
}

fn budgets(folder: &Path) {
    let train = "train --layers 8 --width 64 --heads 2 --sequence 256 --batch 16 --steps 3 --pipeline 2 --micro-batches 4";
    let store_all: Value =
        serde_json::from_str(&well(folder, 2, &format!("{train} --strategy store-all --json"))).unwrap();
    let limited: Value =
        serde_json::from_str(&well(folder, 2, &format!("{train} --budget 55% --json"))).unwrap();
    let number = |of: &Value, rank: usize, what: &str| of["ranks"][rank][what].as_u64().unwrap();
    assert_eq!((number(&limited, 0, "in_flight"), number(&limited, 1, "in_flight")), (2, 1));
    for rank in 0..2 {
        let (peak, budget) = (number(&limited, rank, "peak_bytes"), number(&limited, rank, "budget_bytes"));
        assert!(peak <= budget, "rank {rank}: {peak} of {budget}");
        let predicted = number(&limited, rank, "predicted_bytes") as f64;
        assert!(
            (0.8..1.05).contains(&(peak as f64 / predicted)),
            "rank {rank}: {peak}, predicted {predicted}"
        );
    }
    // The sum over micro-batches is in the budget that was given, not on top of it.
    let given = "train --layers 6 --width 64 --heads 2 --sequence 128 --batch 8 --steps 3 --micro-batches 2 --budget 16MiB --json";
    for (ranks, flags) in [
        (2, "--data-parallel 2"),
        (2, "--zero 2"),
        (2, "--tensor-parallel 2"),
        (4, "--data-parallel 4 --zero 2"),
        (4, "--tensor-parallel 2 --data-parallel 2"),
        (4, "--pipeline 2 --data-parallel 2"),
    ] {
        let run: Value = serde_json::from_str(&well(folder, ranks, &format!("{given} {flags}"))).unwrap();
        assert_eq!(number(&run, 0, "budget_bytes"), 16 << 20, "{flags}");
        for rank in 0..ranks {
            let peak = number(&run, rank, "peak_bytes");
            assert!(peak <= 16 << 20, "{flags}, rank {rank}: {peak}");
            assert!(number(&run, rank, "update_bytes") > 0, "{flags}");
            // Ranks wait for each other at the sums, whatever else they do.
            let busy = run["ranks"][rank]["busy"].as_f64().unwrap();
            assert!(busy > 0.0 && busy < 0.999, "{flags}, rank {rank}: {busy}");
        }
    }
    // The first holds two micro-batches, and so has to let go of more.
    assert!(number(&limited, 0, "peak_bytes") < number(&store_all, 0, "peak_bytes") * 6 / 10);
    assert_eq!(limited["pipeline"], 2);
    let both = [0, 1].map(|rank| number(&limited, rank, "weights_bytes")).iter().sum::<u64>();
    let alone: Value = serde_json::from_str(&well(
        folder,
        2,
        "train --layers 8 --width 64 --heads 2 --sequence 256 --batch 16 --steps 2 --zero 1 --json",
    ))
    .unwrap();
    assert_eq!(number(&alone, 0, "weights_bytes"), both, "each rank has its own weights alone");
    let values = both / 4;
    assert_eq!(number(&alone, 0, "optimizer_bytes"), 2 * 4 * values.div_ceil(2), "half of two moments");
}

/// Sums over ranks that are under way and those over micro-batches were counted as if all of them were there at every moment.
fn predicted(folder: &Path) {
    let two = (0..=2).flat_map(|zero| [1, 2, 4].map(|micro_batches| (2, zero, micro_batches)));
    for (ranks, zero, micro_batches) in two.chain([(4, 1, 1), (4, 2, 2)]) {
        let flags = format!(
            "train --data-parallel {ranks} --zero {zero} --micro-batches {micro_batches} --batch {} --steps 2 --json",
            4 * ranks
        );
        let run: Value = serde_json::from_str(&well(folder, ranks, &flags)).unwrap();
        for rank in run["ranks"].as_array().unwrap() {
            let number = |what: &str| rank[what].as_u64().unwrap() as f64;
            let off = number("predicted_bytes") / number("peak_bytes");
            assert!((0.9..1.1).contains(&off), "{flags}: {off}, {rank}");
            assert!(number("peak_bytes") <= number("budget_bytes"), "{flags}: {rank}");
            // Sums and update, which are in no budget. While the weights are handed around, there are all of them once more, and this
            // rank's part of what it sends and of two moments, which are new in the first step.
            let gradients = number("weights_bytes");
            let part = gradients / ranks as f64;
            let handed_around = gradients + 3.0 * part;
            let update = match zero {
                // Adam makes moments and weights anew beside the sum.
                0 => 4.0 * gradients,
                // The buckets, and the sum they go into.
                1 => handed_around.max(2.0 * gradients),
                // Never all of the sum, but three buckets of a sixteenth.
                _ => handed_around.max(gradients + part + 3.0 / 16.0 * gradients),
            };
            let off = number("update_bytes") / update;
            assert!((0.9..1.1).contains(&off), "{flags}: {off}, {rank}");
        }
    }
}

fn goes_on(folder: &Path) {
    let train = |steps: u32, flags: &str| {
        format!(
            "train --layers 4 --width 32 --heads 2 --sequence 32 --batch 4 --strategy every-1 --steps {steps} {flags}"
        )
    };
    let expected = weights(folder, 2, &train(6, "--data-parallel 2"));
    well(folder, 4, &train(3, "--data-parallel 2 --pipeline 2 --zero 2 --snapshots run"));
    let output = rekindle(folder, 2, &train(6, "--data-parallel 2 --snapshots run"));
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("`run` has snapshots already, up to step 3"), "{}", said(&output));
    // Half as many ranks, another way to share out, and from the disk.
    let found = weights(folder, 2, &train(6, "--pipeline 2 --micro-batches 2 --snapshots run --resume"));
    assert!(found == expected, "four ranks, then two");
    let output = rekindle(folder, 0, &train(9, "--snapshots run --resume --micro-batches 2"));
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("is of a run over ranks"), "{}", said(&output));
    let output = rekindle(folder, 2, &train(6, "--data-parallel 2 --snapshots run --resume"));
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert!(said(&output).contains("the run is through: 6 of 6 steps are done"), "{}", said(&output));
    // Twice as many.
    well(folder, 2, &train(3, "--data-parallel 2 --zero 1 --snapshots more"));
    let found =
        weights(folder, 4, &train(6, "--data-parallel 2 --pipeline 2 --zero 2 --snapshots more --resume"));
    assert!(found == expected, "two ranks, then four");
    well(folder, 1, &train(8, "--data-parallel 1 --micro-batches 2 --snapshots run --resume"));
    let output =
        rekindle(folder, 1, &train(8, "--data-parallel 1 --snapshots run --resume --learning-rate 0.5"));
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("learning rate: found 0.001, expected 0.5"), "{}", said(&output));
}

/// A rank that is killed leaves the snapshots that were whole by then.
fn goes_on_after_a_loss(folder: &Path) {
    let train = |steps: u32, flags: &str| {
        format!(
            "train --layers 2 --width 16 --heads 2 --sequence 16 --batch 4 --strategy every-1 --steps {steps} {flags}"
        )
    };
    for ranks in [2, 4] {
        let folder = folder.join(ranks.to_string());
        std::fs::create_dir_all(&folder).unwrap();
        let flags = match ranks {
            2 => "--data-parallel 2 --zero 1",
            _ => "--data-parallel 2 --pipeline 2 --zero 2",
        };
        let snapshots = format!("{flags} --snapshots run --snapshot-every 1");
        // More steps than it can take until it is killed.
        let mut run =
            command(&folder, ranks, &train(100_000, &snapshots)).stderr(Stdio::null()).spawn().unwrap();
        let second = after_step_3(&folder, &run);
        assert!(Command::new("kill").args(["-KILL", &second]).status().unwrap().success());
        assert!(!run.wait().unwrap().success());
        // Not by the log, of whose last lines a rank that is ended writes none.
        let steps = last_snapshot(&folder.join("run")) + 5;
        let found = weights(&folder, ranks, &train(steps, &format!("{snapshots} --resume")));
        let log = std::fs::read_to_string(folder.join("rekindle-ranks/rank-0.log")).unwrap();
        assert!(log.contains("going on after step "), "{log}");
        let expected = weights(&folder, ranks, &train(steps, flags));
        assert!(found == expected, "{ranks} ranks, {steps} steps");
    }
}

/// The step of the newest snapshot.
fn last_snapshot(folder: &Path) -> u32 {
    let files =
        std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
    let step = |name: String| name.strip_prefix("step-")?.strip_suffix(".rekindle")?.parse().ok();
    files.filter_map(step).max().unwrap()
}

fn refused(folder: &Path) {
    for (flags, words) in [
        ("--pipeline 3", "there are 2 ranks, but --data-parallel 1 of --pipeline 3 are 3"),
        ("--data-parallel 2 --tui", "is not a terminal"),
        ("--data-parallel 2 --budget auto", "--budget auto is not for several ranks"),
        ("--data-parallel 2 --adaptive", "--adaptive is not for several ranks"),
        ("--data-parallel 2 --batch 3", "a batch of 3 cannot be shared out evenly"),
        ("--data-parallel 2 --learning-rate nan", "--learning-rate is NaN, expected a number above 0"),
        ("--data-parallel 2 --clip-norm 1", "--clip-norm is not for several ranks"),
        ("--pipeline 2 --budget 1KiB", "has no plan within 1.0 KiB"),
        ("--pipeline 2 --budget 64MiB --cut parts", "--cut parts in a pipeline is not for several ranks"),
        (
            "--data-parallel 2 --micro-batches 2 --budget 1KiB",
            "(sums of gradients), which leaves 0 B of the budget",
        ),
        ("--pipeline 2 --budget smallest", "is not for a pipeline"),
        ("--pipeline 2 --compress lossless", "a place such as --disk is not for several ranks"),
        ("--data-parallel 2 --budget 1KiB", "no plan takes"),
        ("--data-parallel 2 --weights none.safetensors", "cannot read"),
        ("--data-parallel 2 --resume --snapshots nothing", "has no snapshot to go on from"),
        ("--tensor-parallel 3", "--data-parallel 1 of --pipeline 1 of --tensor-parallel 3 are 3"),
        ("--tensor-parallel 2 --heads 1", "1 heads cannot be shared out evenly among 2 ranks"),
        ("--tensor-parallel 2 --burn", "no layers that ranks can have parts of"),
        ("--tensor-parallel 2 --model resnet --layers 11", "no layers that ranks can have parts of"),
        ("--tensor-parallel 2 --budget 1KiB", "no plan takes"),
        ("--tensor-parallel 1 --pipeline 2 --partition-checkpoints", "is not for several ranks"),
    ] {
        let small = match flags {
            flags if flags.contains("resnet") => "--width 4 --steps 2",
            flags if flags.contains("--heads") => "--layers 2 --width 16 --sequence 16 --steps 2",
            _ => "--layers 2 --width 16 --heads 2 --sequence 16 --steps 2",
        };
        let batch = if flags.contains("--batch") { "" } else { "--batch 4" };
        let output = rekindle(folder, 2, &format!("train {small} {batch} {flags}"));
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{flags}:\n{said}");
        assert!(said.contains(words), "{flags}:\n{said}");
        let told = said.matches("error: ").count();
        assert!(told == 1, "{flags} is told {told} times:\n{said}");
        assert!(said.contains("hint: "), "{flags}:\n{said}");
        // Who does what is said is through, in the first step as in the last.
        if let Some((rest, enough)) =
            flags.split_once("--budget 1KiB").zip(said.split_once("hint: give --budget "))
        {
            let enough: u64 = enough.1.split_whitespace().next().unwrap().parse().unwrap();
            // Times differ from run to run, and memory by what is in them: planned again, it is a few nodes more or less.
            let flags = format!("{}--budget {}{}", rest.0, enough + (64 << 10), rest.1);
            well(folder, 2, &format!("train {small} {batch} {flags}"));
        }
    }
}

fn differently(folder: &Path) {
    let own = env!("CARGO_BIN_EXE_rekindle");
    for (first, second, words) in [
        ("--steps 2", "--steps 3", "on rank 1"),
        ("--steps 2 --zero 1", "--steps 2 --zero 2", "on rank 1"),
        ("--steps 2 --strategy every-1", "--steps 2 --strategy sqrt", "on rank 1"),
        ("--steps 2 --seed 1", "--steps 2 --seed 2", "seed: 1` on rank 0, `seed: 2` on rank 1"),
    ] {
        let small = "--layers 2 --width 16 --heads 2 --sequence 16 --batch 4";
        let both = format!("train {small} {first} : -n 1 {own} train {small} {second}");
        let output = rekindle(folder, 1, &both);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(2), "{first}, {second}:\n{said}");
        assert!(said.contains("different settings") && said.contains(words), "{first}, {second}:\n{said}");
    }
}

/// What a rank finds before it has met the others: flags, a file of flags, data. The others are not left waiting.
fn not_read(folder: &Path) {
    let own = env!("CARGO_BIN_EXE_rekindle");
    let good = "train --layers 2 --width 16 --heads 2 --sequence 16 --batch 4 --steps 2";
    std::fs::write(folder.join("bad.toml"), "[train]\nlayres = 3\n").unwrap();
    std::fs::create_dir(folder.join("other")).unwrap();
    std::fs::write(folder.join("book.txt"), "a book, and a book again, ".repeat(100)).unwrap();
    let mut runs = vec![
        (format!("{good} : -n 1 {own} {good} --help"), "help is asked for", Some("on rank 1 of 2")),
        (
            format!("{good} --data none.txt : -n 1 {own} {good} --data none.txt"),
            "cannot read `none.txt`",
            None,
        ),
        (
            format!("{good} --data book.txt : -n 1 -wdir other {own} {good} --data book.txt"),
            "cannot read `book.txt`",
            Some("on rank 1 of 2"),
        ),
    ];
    for (flags, words) in [
        ("--stepz 2", "unexpected argument '--stepz'"),
        ("--zero 7", "invalid value '7' for '--zero"),
        ("--config bad.toml", "layres"),
        ("--tui", "is not a terminal"),
    ] {
        let bad = format!("{good} {flags}");
        runs.push((format!("{bad} : -n 1 {own} {bad}"), words, None));
        runs.push((format!("{good} : -n 1 {own} {bad}"), words, Some("on rank 1 of 2")));
        runs.push((format!("{bad} : -n 1 {own} {good}"), words, Some("on rank 0 of 2")));
    }
    for (arguments, words, ranks) in runs {
        let start = Instant::now();
        let output = rekindle(folder, 1, &arguments);
        let (took, said) = (start.elapsed(), said(&output));
        assert_eq!(output.status.code(), Some(2), "{arguments}:\n{said}");
        assert!(said.contains(words), "{arguments}:\n{said}");
        assert_eq!(said.matches("error: ").count(), 1, "{arguments}:\n{said}");
        assert_eq!(said.contains("on rank"), ranks.is_some(), "{arguments}:\n{said}");
        assert!(ranks.is_none_or(|ranks| said.contains(ranks)), "{arguments}:\n{said}");
        assert!(took < Duration::from_secs(10), "{arguments}: {took:?}");
    }
    // What is asked for is no failure, and is told once as well.
    for (flags, words) in [
        ("train --help", "Where each rank writes"),
        ("--version", "rekindle 0."),
        ("plan --help", "Share the stages out"),
    ] {
        assert_eq!(well(folder, 2, flags).matches(words).count(), 1, "{flags}");
    }
    std::fs::write(folder.join("rekindle.toml"), "[train]\nseed = 3\n").unwrap();
    let output = rekindle(folder, 2, good);
    assert_eq!(said(&output).matches("using rekindle.toml").count(), 1, "{}", said(&output));
}

/// A rank whose process is stopped cannot say so itself.
fn stopped(folder: &Path) {
    for ranks in [2, 4] {
        let said = lost(folder, ranks, "-STOP");
        let words = format!("rank 1 of {ranks}: hangs: its process has been stopped for 5.0 s");
        assert!(said.contains(&words), "{said}");
    }
}

/// One that is killed neither: `mpirun` does.
fn killed(folder: &Path) {
    for ranks in [2, 4] {
        let said = lost(folder, ranks, "-KILL");
        assert!(said.contains("process rank 1 ") && said.contains("signal 9"), "{said}");
    }
}

/// What a run says whose second rank gets a signal in the middle of its steps, and which has to end soon after that.
fn lost(folder: &Path, ranks: usize, signal: &str) -> String {
    let folder = folder.join(ranks.to_string());
    std::fs::create_dir_all(&folder).unwrap();
    let train = format!(
        "train --layers 2 --width 16 --heads 2 --sequence 16 --batch 4 --steps 100000 --data-parallel {ranks}"
    );
    let mut run = command(&folder, ranks, &train).stderr(Stdio::piped()).spawn().unwrap();
    let second = after_step_3(&folder, &run);
    let start = Instant::now();
    assert!(Command::new("kill").args([signal, &second]).status().unwrap().success());
    let mut said = String::new();
    run.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    let (status, took) = (run.wait().unwrap(), start.elapsed());
    assert!(!status.success(), "{said}");
    assert!(took < Duration::from_secs(10), "{ranks} ranks: {took:?}: {said}");
    said
}

/// The number of the second rank's process, once it has taken its third step.
fn after_step_3(folder: &Path, run: &Child) -> String {
    let log = folder.join("rekindle-ranks/rank-1.log");
    let runs = || std::fs::read_to_string(&log).is_ok_and(|log| log.contains("step 3 "));
    let patience = Instant::now();
    while !runs() {
        assert!(patience.elapsed() < Duration::from_secs(60), "no step in a minute");
        std::thread::sleep(Duration::from_millis(20));
    }
    let child = format!("/proc/{0}/task/{0}/children", run.id());
    let children = std::fs::read_to_string(child).unwrap();
    let is_second = |process: &&str| {
        let environment = std::fs::read(format!("/proc/{process}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == b"OMPI_COMM_WORLD_RANK=1")
    };
    children.split_whitespace().find(is_second).unwrap().to_owned()
}

/// MPI adds up in an order of its own: weights are those of ordered sums but for rounding, in every way to share out.
fn native(folder: &Path) {
    for (ranks, flags) in [
        (4, "--data-parallel 4"),
        (2, "--data-parallel 2 --zero 2"),
        (4, "--data-parallel 2 --pipeline 2 --micro-batches 2 --zero 1"),
        (2, "--tensor-parallel 2"),
        (2, "--tensor-parallel 2 --partition-checkpoints --budget smallest"),
        (4, "--tensor-parallel 2 --data-parallel 2 --zero 2"),
        (4, "--tensor-parallel 2 --pipeline 2 --micro-batches 2"),
    ] {
        let strategy = if flags.contains("--budget") { "" } else { "--strategy every-1" };
        let train = format!("train {SMALL} {strategy} {flags}");
        let ordered = numbers(&weights(folder, ranks, &train));
        let native = numbers(&weights(folder, ranks, &format!("{train} --reduction native")));
        assert_eq!(native.len(), ordered.len(), "{flags}");
        let apart = native.iter().zip(&ordered).map(|(a, b)| (a - b).abs());
        assert!(native.iter().all(|value| value.is_finite()), "{flags}");
        // As far as sums in another order came apart without dropout above. Adam moves a weight by 0.001 a step.
        let apart = apart.fold(0.0, f32::max);
        assert!(apart < 5e-4, "{ranks} ranks, {flags}: {apart}");
    }
    let json = well(folder, 2, &format!("train {SMALL} --strategy every-1 --reduction native --json"));
    assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["reduction"], "native");
}
