//! The examples of the guides, at a small size: they run, and say what the guides say they do.

use std::process::Command;

/// Runs an example that was built beside this test.
fn run(name: &str, arguments: &[&str]) -> String {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().and_then(|folder| folder.parent()).unwrap().join("examples");
    let output = Command::new(folder.join(name)).args(arguments).output();
    let output =
        output.unwrap_or_else(|error| panic!("`{name}` cannot be run: {error}; `cargo test` builds it"));
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// No row says that gradients differ.
fn all_identical(name: &str, arguments: &[&str]) -> String {
    let said = run(name, arguments);
    assert!(said.contains("identical") && !said.contains("DIFFER"), "{said}");
    said
}

/// The columns of the lines below a head, which is the first line that begins so, up to an empty one.
fn rows<'a>(said: &'a str, head: &str) -> Vec<Vec<&'a str>> {
    let columns = |line: &'a str| line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect();
    let below = said.lines().skip_while(|line| !line.starts_with(head)).skip(1);
    let rows: Vec<Vec<&str>> = below.take_while(|line| !line.is_empty()).map(columns).collect();
    assert!(!rows.is_empty(), "no `{head}` in: {said}");
    rows
}

/// `1.5 MiB`, as a number.
fn bytes(text: &str) -> f64 {
    let (number, unit) = text.split_once(' ').unwrap_or_else(|| panic!("`{text}` are no bytes"));
    let unit = ["B", "KiB", "MiB", "GiB"].iter().position(|known| *known == unit);
    number.parse::<f64>().unwrap() * 1024f64.powi(unit.unwrap() as i32)
}

/// `39.5%` or `1.2x`, as a number.
fn number(text: &str) -> f64 {
    text.trim_end_matches(['%', 'x']).parse().unwrap_or_else(|_| panic!("`{text}` is no number"))
}

#[test]
fn a_model_that_does_not_fit_is_trained_within_its_budget() {
    let said = run("fit", &["8", "64", "50"]);
    assert!(said.contains("planned (") && said.contains("step 10: loss "), "{said}");
    let budget = said.split("there are ").nth(1).and_then(|rest| rest.lines().next()).unwrap();
    let steps = said.lines().filter(|line| line.starts_with("step "));
    let peaks: Vec<f64> =
        steps.map(|line| bytes(line.split(", ").nth(1).unwrap().trim_end_matches(" at the peak"))).collect();
    assert_eq!(peaks.len(), 10, "{said}");
    // What is printed has a digit behind the point.
    assert!(peaks.iter().all(|peak| *peak <= bytes(budget) * 1.01), "{said}");
}

#[test]
fn a_very_deep_net() {
    let said = all_identical("very_deep", &["29", "16", "1"]);
    let rows = rows(&said, "strategy");
    let part = |name: &str| {
        let row = rows.iter().find(|row| row[0] == name).unwrap_or_else(|| panic!("no {name}: {said}"));
        number(row[2])
    };
    assert!(part("every-1") < 60.0 && part("optimal-50%") <= 50.0, "{said}");
}

#[test]
fn four_times_the_tokens() {
    let said = all_identical("high_resolution", &["32", "8", "32", "8", "4", "1"]);
    let rows = rows(&said, "tokens");
    let plain: Vec<f64> = rows.iter().filter(|row| row[1] == "plain").map(|row| bytes(row[2])).collect();
    let tokens: Vec<f64> = rows.iter().map(|row| row[0].parse().unwrap()).collect();
    assert_eq!(tokens.last(), Some(&(4.0 * tokens[0])), "{said}");
    let least = rows.iter().filter(|row| row[1].ends_with("smallest")).map(|row| bytes(row[2]));
    assert!(plain[1] > 2.0 * plain[0] && least.fold(f64::MAX, f64::min) < plain[0], "{said}");
    assert!(said.trim_end().ends_with(": yes"), "{said}");
}

#[test]
fn a_long_recurrence() {
    let said = all_identical("recurrence", &["800"]);
    for row in rows(&said, "strategy") {
        match row[0] {
            name if name.starts_with("truncated") => assert!(row[5].ends_with(" off"), "{row:?}"),
            _ => assert_eq!(row[5], "identical", "{row:?}"),
        }
    }
    // Sixteen times the steps: four times the memory, and what a region lists for each stage.
    let growth = rows(&said, "steps");
    let (first, last) = (bytes(growth[0][1]), bytes(growth[2][1]));
    assert!(last <= 4.5 * first, "{said}");
    let learned = rows(&said, "to remember");
    let [exact, truncated] = [0, 1].map(|row: usize| number(learned[row].last().unwrap()));
    // By chance it is a quarter.
    assert!(exact > 90.0 && truncated < exact - 30.0, "{said}");
}

#[test]
fn long_sequences_take_memory_in_proportion() {
    // Of two blocks, one of them and its boundaries are as much as both where the sequence is short.
    let said = run("long_sequences", &["128", "512", "4"]);
    let rows = rows(&said, "tokens");
    assert_eq!(rows.len(), 3, "{said}");
    for pair in rows.windows(2) {
        let growth = |column: usize| bytes(pair[1][column]) / bytes(pair[0][column]);
        // Beside what grows there are the gradients of the weights, which do not.
        assert!((2..=4).all(|column| growth(column) < 2.3), "{said}");
        assert!(growth(1) > growth(2), "{said}");
    }
    for row in &rows {
        assert!(row[1..].windows(2).all(|pair| bytes(pair[0]) >= bytes(pair[1])), "{said}");
    }
}

#[test]
fn a_contrastive_batch_in_chunks() {
    let said = all_identical("contrastive", &["128", "16", "16"]);
    let rows = rows(&said, "step");
    let of_whole: Vec<_> = rows.iter().filter(|row| row[0].starts_with("128, ")).collect();
    assert!(of_whole.len() >= 2, "{said}");
    for row in &of_whole {
        assert!(number(row[2]) <= 2.0, "{said}");
        assert!(row[0].ends_with("store-all") || row[4] == "identical", "{said}");
    }
    let off = said.split("differ by ").nth(1).and_then(|rest| rest.split_whitespace().next()).unwrap();
    assert!(off.parse::<f64>().unwrap() < 1e-5, "{said}");
}

#[test]
fn policies_beside_each_other() {
    let said = all_identical("policy", &["3", "64", "64"]);
    let rows = rows(&said, "peak");
    assert!(rows.len() >= 5, "{said}");
    for row in &rows {
        assert_eq!(row[4], "identical", "{said}");
        assert!(row[5] == "plain" || number(row[1]) < 100.0, "{said}");
    }
}

#[test]
fn fewer_digits_and_smaller_parts() {
    let said = all_identical("precision", &["2", "32", "16"]);
    let rows = rows(&said, "digits");
    assert_eq!(rows.len(), 6, "{said}");
    let (plain, off) = (|row: &[&str]| bytes(row[2]), |row: &[&str]| row[7].parse::<f64>().unwrap());
    for row in &rows {
        assert_eq!(row[6], "identical", "{said}");
        // Parts add up in another order, which rounds otherwise; 16 bits keep three digits, or four.
        assert!(off(row) < if row[0] == "f32" { 1e-5 } else { 0.1 }, "{said}");
    }
    assert!(plain(&rows[1]) < plain(&rows[0]) && plain(&rows[2]) < plain(&rows[0]), "{said}");
}

#[test]
fn gradients_are_validated_and_a_stage_that_changes_is_named() {
    let said = run("validate", &[]);
    assert_eq!(said.matches("6 of 6 gradients have the same bytes").count(), 3, "{said}");
    assert!(said.contains("found: ") && said.contains("(`noisy`)"), "{said}");
}
