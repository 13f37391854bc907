//! What ranks do together, in real processes. This program is both: started by `cargo test` it starts itself under `mpirun`, with
//! two and with four ranks, once for every case; started by `mpirun` it is a rank.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, reason = "a test")]

mod cases;

use std::process::{Command, ExitCode};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cases::{CASES, Case, Ends};

/// Longer than any case takes on a machine that others use, too.
const PATIENCE: Duration = Duration::from_secs(240);

fn main() -> ExitCode {
    if let Ok(name) = std::env::var("REKINDLE_CASE") {
        let case = CASES.iter().find(|case| case.name == name).expect("a case of this name");
        cases::run(case);
        return ExitCode::SUCCESS;
    }
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--list") {
        CASES.iter().for_each(|case| println!("{}: test", case.name));
        return ExitCode::SUCCESS;
    }
    let wanted = arguments.iter().find(|argument| !argument.starts_with('-'));
    let named = |case: &&Case| wanted.is_none_or(|wanted| case.name.contains(wanted.as_str()));
    let (mut passed, mut failed) = (0, Vec::new());
    for case in CASES.iter().filter(named) {
        for ranks in [2, 4] {
            match launch(case, ranks) {
                Ok(took) => {
                    println!("test {} with {ranks} ranks ... ok, {:.1} s", case.name, took.as_secs_f64());
                    passed += 1;
                }
                Err(said) => {
                    println!("test {} with {ranks} ranks ... FAILED\n{said}", case.name);
                    failed.push(case.name);
                }
            }
        }
    }
    let result = if failed.is_empty() { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {result}. {passed} passed; {} failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s",
        failed.len()
    );
    ExitCode::from(u8::from(!failed.is_empty()))
}

/// Runs one case on so many ranks. Gives how long it took; where a rank is lost, how long after that the run took to end.
fn launch(case: &Case, ranks: usize) -> Result<Duration, String> {
    let own = std::env::current_exe().expect("the path of this program");
    let start = Instant::now();
    let output = Command::new("mpirun")
        .args(["--allow-run-as-root", "--oversubscribe", "--timeout", &PATIENCE.as_secs().to_string()])
        .args(["-n", &ranks.to_string()])
        .arg(own)
        .env("REKINDLE_CASE", case.name)
        // Ranks share this machine: a thread each, and no reading of each other's memory, which containers forbid.
        .env("RAYON_NUM_THREADS", "1")
        .env("OMPI_MCA_btl_vader_single_copy_mechanism", "none")
        .env("OMPI_MCA_mpi_yield_when_idle", "1")
        .output()
        .map_err(|error| format!("`mpirun` cannot be started: {error}; Debian's package is openmpi-bin"))?;
    let took = start.elapsed();
    let ended = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock");
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8_lossy(&said).into_owned();
    let told = |what: String| Err(format!("{what} after {:.1} s; it said:\n{said}", took.as_secs_f64()));
    match case.ends {
        Ends::Well => {
            // A rank that ends by itself, without MPI, could look as if it were well.
            let well = said.lines().filter(|line| line.starts_with("well: rank ")).count();
            if !output.status.success() || well != ranks {
                return told(format!("{well} of {ranks} ranks ended well"));
            }
        }
        Ends::Badly { saying } => {
            if output.status.success() {
                return told("the run succeeded".to_owned());
            }
            let words = saying.iter().map(|words| words.replace("{ranks}", &ranks.to_string()));
            if let Some(missing) = words.into_iter().find(|words| !said.contains(words.as_str())) {
                return told(format!("nobody said `{missing}`"));
            }
            let Some(lost) = said.lines().find_map(|line| line.strip_prefix(cases::LOST)?.parse().ok())
            else {
                return told("no rank said when it was lost".to_owned());
            };
            let after = ended.saturating_sub(Duration::from_millis(lost));
            if after > cases::SOON {
                return told(format!("the run ended {:.1} s after a rank was lost", after.as_secs_f64()));
            }
            return Ok(after);
        }
    }
    Ok(took)
}
