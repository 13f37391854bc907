//! Every model by its name: trained, verified, traced, on its own examples and on the user's files.

#![allow(clippy::unwrap_used, reason = "a test may fail by panicking")]

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use image::{Rgb, RgbImage};
use serde_json::Value;
use tempfile::{TempDir, tempdir};

fn rekindle(arguments: &[&str]) -> Output {
    let mut run = Command::new(env!("CARGO_BIN_EXE_rekindle"));
    run.env("NO_COLOR", "1").env("COLUMNS", "100").arg("--no-config").args(arguments).output().unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let output = rekindle(&[arguments, &["--json"]].concat());
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// What the command says when it refuses, and that it does with the code for a bad request.
fn refused(arguments: &[&str]) -> String {
    let output = rekindle(arguments);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    said
}

/// Small ones of each.
const MODELS: [(&str, &[&str]); 7] = [
    ("gpt", &["--layers", "2", "--width", "32", "--heads", "2", "--sequence", "16"]),
    ("llama", &["--layers", "2", "--width", "32", "--heads", "4", "--key-heads", "2", "--sequence", "16"]),
    ("vit", &["--layers", "2", "--width", "32", "--heads", "2", "--pixels", "16"]),
    ("resnet", &["--layers", "11", "--width", "4", "--pixels", "16"]),
    ("lstm", &["--width", "64", "--sequence", "40"]),
    ("gru", &["--width", "64", "--sequence", "40"]),
    ("two-tower", &["--layers", "1", "--width", "32", "--heads", "2", "--pixels", "16"]),
];

#[test]
fn every_model_trains_within_its_budget_with_identical_gradients() {
    for (model, size) in MODELS {
        let found = json(
            &[&["train", "--model", model, "--steps", "3", "--batch", "8", "--budget", "smallest"], size]
                .concat(),
        );
        assert_eq!(found["gradients"]["identical"], found["gradients"]["tensors"], "{model}");
        assert_eq!(found["gradients"]["loss_identical"], true, "{model}");
        let bytes = |key: &str| found[key].as_u64().unwrap();
        assert!(bytes("peak_bytes") <= bytes("budget_bytes"), "{model}: {found}");
        assert!(bytes("peak_bytes") < bytes("plain_peak_bytes"), "{model}: {found}");
        assert!(found["model"].as_str().unwrap().starts_with(model), "{found}");
        assert!(found["held_out"]["examples"].as_u64().unwrap() >= 32, "{found}");
    }
}

/// The table of the docs, at a small size: what it says of gradients and budgets holds for all of them.
#[test]
fn every_model_is_benched() {
    let rules = ["plain", "every-1", "optimal-50%", "optimal-25%"];
    // Of a few stages the largest is more than half.
    let deeper: [(&str, &[&str]); 2] = [
        ("resnet", &["--layers", "38", "--width", "4", "--pixels", "16"]),
        ("two-tower", &["--layers", "3", "--width", "32", "--heads", "2", "--pixels", "16"]),
    ];
    for (model, size) in MODELS {
        let deeper = deeper.iter().find(|(name, _)| *name == model);
        let size = deeper.map_or(size, |(_, size)| size);
        let flags = ["bench", "--model", model, "--batch", "128", "--rounds", "1", "--strategies"];
        let found = json(&[&flags[..], &[&rules.join(",")], size].concat());
        let rows = found["rows"].as_array().unwrap();
        let named: Vec<_> = rows.iter().map(|row| row["strategy"].as_str().unwrap()).collect();
        // A quarter is less than what some of these have in gradients of their weights alone.
        assert!(named == rules || named == rules[..3], "{model}: {named:?}");
        let plain = rows[0]["peak_bytes"].as_u64().unwrap();
        for row in rows {
            assert_eq!(row["identical"], true, "{model}: {row}");
            let most = row["most_bytes"].as_u64().unwrap();
            assert!(most <= row["budget_bytes"].as_u64().unwrap_or(most), "{model}: {row}");
            assert!(row["strategy"] == "plain" || most < plain, "{model}: {row}");
        }
    }
}

#[test]
fn a_recurrence_runs_under_solvers_that_count_slots() {
    let size = ["--model", "gru", "--width", "64", "--sequence", "400", "--batch", "4"];
    let strategies = ["--strategies", "revolve-3,mixed-3,online-3,revolve-6", "--rounds", "1"];
    let found = json(&[&["bench"], &size[..], &strategies].concat());
    let rows = found["rows"].as_array().unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row["strategy"].as_str().unwrap()).collect();
    assert_eq!(names, ["plain", "revolve-3", "mixed-3", "online-3", "revolve-6"]);
    let peak = |row: &Value| row["peak_bytes"].as_u64().unwrap();
    for row in &rows[1..] {
        assert_eq!(row["identical"], true, "{row}");
        assert!(row["budget_bytes"].is_null(), "{row}");
        assert!(2 * peak(row) < peak(&rows[0]), "{row}");
    }
    let verified = rekindle(&[&["verify"], &size[..], &["--strategy", "online-3"]].concat());
    assert!(verified.status.success(), "{}", String::from_utf8_lossy(&verified.stderr));
    let trained = json(&[&["train"], &size[..], &["--strategy", "revolve-3", "--steps", "2"]].concat());
    assert_eq!(trained["gradients"]["identical"], trained["gradients"]["tensors"], "{trained}");
}

/// Parts know the gradient of the whole loss towards their embeddings, which takes more memory the larger the whole is.
#[test]
fn a_large_batch_of_pairs_in_parts_keeps_its_budget() {
    let (_, size) = MODELS[6];
    for budget in [&[][..], &["--budget", "smallest"], &["--budget", "8MiB"]] {
        let asked =
            ["train", "--model", "two-tower", "--steps", "1", "--batch", "1024", "--micro-batches", "128"];
        let found = json(&[&asked, size, budget].concat());
        let bytes = |key: &str| found[key].as_u64().unwrap();
        assert!(bytes("peak_bytes") <= bytes("budget_bytes"), "{budget:?}: {found}");
        assert_eq!(found["gradients"]["identical"], found["gradients"]["tensors"], "{budget:?}");
    }
}

#[test]
fn a_model_is_traced_planned_and_trained_from_files() {
    let folder = tempdir().unwrap();
    let file = |name: &str| folder.path().join(name).display().to_string();
    for (model, size) in [MODELS[0], MODELS[1], MODELS[2], MODELS[6]] {
        for (cut, how) in [("blocks", "--trace"), ("parts", "--trace"), ("parts", "--measure")] {
            let (profile, plan) = (file("profile.json"), file("plan.json"));
            let run = |arguments: &[&str]| {
                let output = rekindle(arguments);
                (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
            };
            let done = |arguments: &[&str]| {
                let (success, said) = run(arguments);
                assert!(success, "{model} {cut} {how} {arguments:?}: {said}");
            };
            let of_model = [&["--model", model, "--batch", "8"], size].concat();
            done(&[&["profile", how, "--cut", cut, "-o", &profile], &of_model[..]].concat());
            let plan_with = |margin: &str| {
                done(&["plan", &profile, "--budget", "130%", "--margin", margin, "-o", &plan]);
                run(&[&["train", "--steps", "1", "--profile", &profile, "--plan", &plan], &of_model[..]]
                    .concat())
            };
            let (success, said) = plan_with("20%");
            // A trace knows of no memory that two threads take at once: whoever is refused is told a margin that is enough.
            if !success {
                let margin = said.split("--margin ").nth(1).and_then(|rest| rest.split_whitespace().next());
                let (success, said) =
                    plan_with(margin.unwrap_or_else(|| panic!("{model} {cut} {how}: {said}")));
                assert!(how == "--trace" && success, "{model} {cut} {how}: {said}");
            }
        }
    }
}

#[test]
fn every_model_is_verified_in_parts_of_a_batch_and_traced() {
    for (model, size) in MODELS {
        let flags =
            ["verify", "--model", model, "--batch", "8", "--micro-batches", "2", "--strategy", "full"];
        let verdict = json(&[&flags, size].concat());
        assert_eq!(verdict["identical"], verdict["tensors"], "{model}");
        let profile = json(&[&["profile", "--trace", "--model", model, "--batch", "4"], size].concat());
        assert_eq!(profile["format"], "rekindle.profile/1", "{model}");
        assert_eq!(profile["model"], model);
        let flags = ["profile", "--cut", "blocks", "--runs", "1", "--model", model, "--batch", "4"];
        assert_eq!(json(&[&flags, size].concat())["model"], model, "measured or traced, it has one name");
        assert!(profile["stages"].as_array().unwrap().len() > 3, "{model}");
    }
}

#[test]
fn what_is_made_up_can_be_learned() {
    let enough = |model: &str, flags: &[&str], least: f64| {
        let found = json(&[&["train", "--model", model, "--strategy", "every-1"], flags].concat());
        let held_out = |when: &str| found["held_out"][when].as_f64().unwrap();
        let losses = ["first_loss", "last_loss"].map(|key| found[key].as_f64().unwrap());
        assert!(held_out("after") > least && held_out("after") > held_out("before"), "{model}: {found}");
        assert!(losses[1] < losses[0], "{model}: {found}");
    };
    // Chance is a quarter or less.
    enough("gru", &["--sequence", "30", "--steps", "150"], 0.6);
    enough("resnet", &["--pixels", "16", "--layers", "11", "--steps", "60"], 0.5);
    enough("two-tower", &["--batch", "32", "--steps", "60"], 0.15);
}

#[test]
fn a_flag_of_another_model_is_refused() {
    for (model, flag, value) in [
        ("resnet", "--heads", "4"),
        ("lstm", "--layers", "2"),
        ("gpt", "--pixels", "32"),
        ("vit", "--key-heads", "2"),
        ("two-tower", "--dropout", "0.1"),
        ("gru", "--precision", "bf16"),
    ] {
        let said = refused(&["train", "--model", model, flag, value]);
        assert!(said.contains(&format!("{flag} is given, but a {model} has none of that")), "{said}");
        assert!(said.contains("hint: "), "{said}");
    }
    let said = refused(&["train", "--model", "resnet", "--layers", "30"]);
    assert!(said.contains("--layers is 30, expected 9 N + 2 for a resnet, such as 29"), "{said}");
    let said = refused(&["train", "--model", "vit", "--pixels", "30", "--patch", "4"]);
    assert!(said.contains("--patch is 4, which does not divide 30 pixels"), "{said}");
    let said = refused(&["train", "--model", "llama", "--key-heads", "3"]);
    assert!(said.contains("--key-heads is 3, which does not divide --heads 4"), "{said}");
}

fn picture(path: &Path, side: u32, shade: u8) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    RgbImage::from_pixel(side, side, Rgb([shade, 255 - shade, 128])).save(path).unwrap();
}

/// Dark and bright images, a folder for each.
fn folder() -> TempDir {
    let folder = tempdir().unwrap();
    for index in 0..12u8 {
        picture(&folder.path().join(format!("dark/{index}.png")), 8, 20 + index);
        picture(&folder.path().join(format!("bright/{index}.png")), 8, 220 + index);
    }
    folder
}

#[test]
fn a_folder_of_images_is_learned() {
    let folder = folder();
    let path = folder.path().to_str().unwrap();
    let flags = ["train", "--model", "vit", "--layers", "1", "--width", "16", "--heads", "2", "--batch", "8"];
    let found = json(&[&flags[..], &["--steps", "40", "--strategy", "every-1", "--data", path]].concat());
    assert_eq!(found["held_out"]["after"], 1.0, "{found}");
    fs::write(folder.path().join("dark/broken.png"), "no image").unwrap();
    let run = |more: &[&'static str]| [&flags[..], &["--steps", "2", "--data", path], more].concat();
    let said = refused(&run(&[]));
    assert!(said.contains("broken.png") && said.contains("--skip-broken"), "{said}");
    let output = rekindle(&run(&["--skip-broken", "--strategy", "every-1"]));
    assert!(output.status.success());
    assert!(String::from_utf8(output.stderr).unwrap().contains("left out"));
    fs::remove_file(folder.path().join("dark/broken.png")).unwrap();
    picture(&folder.path().join("dark/large.png"), 12, 30);
    let said = refused(&run(&[]));
    assert!(said.contains("large.png") && said.contains("--pixels"), "{said}");
    assert!(rekindle(&run(&["--pixels", "8", "--strategy", "every-1"])).status.success());
    let output = rekindle(&run(&["--skip-broken", "--strategy", "every-1"]));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("large.png: it has 12 by 12 pixels, where most have 8 by 8"), "{said}");
    assert!(output.status.success(), "{said}");
}

#[test]
fn a_table_of_sequences_is_learned() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("steps.csv");
    let mut table = "sequence,class,x\n".to_owned();
    for sequence in 0..40 {
        let class = sequence % 2;
        for step in 0..6 {
            table += &format!(
                "s{sequence},{class},{}\n",
                if class == 0 { -1.0 } else { 1.0 } + 0.1 * f64::from(step)
            );
        }
    }
    fs::write(&path, &table).unwrap();
    let flags = ["train", "--model", "gru", "--width", "8", "--batch", "8", "--data", path.to_str().unwrap()];
    let found = json(&[&flags[..], &["--steps", "40", "--strategy", "every-1"]].concat());
    assert_eq!(found["held_out"]["after"], 1.0, "{found}");
    fs::write(&path, table.replace("s3,1,1\n", "s3,1,one\n")).unwrap();
    let said = refused(&flags);
    assert!(said.contains("steps.csv") && said.contains("`one` is not a finite number"), "{said}");
    fs::write(&path, "").unwrap();
    assert!(refused(&flags).contains("the table has no rows"));
}

#[test]
fn images_with_texts_are_learned() {
    let folder = tempdir().unwrap();
    for index in 0..24u8 {
        picture(&folder.path().join(format!("{index}.png")), 8, index * 10);
        fs::write(folder.path().join(format!("{index}.txt")), format!("shade {index}\n")).unwrap();
    }
    let path = folder.path().to_str().unwrap();
    let flags = [
        "train",
        "--model",
        "two-tower",
        "--layers",
        "1",
        "--width",
        "16",
        "--heads",
        "2",
        "--batch",
        "8",
        "--sequence",
        "12",
        "--steps",
        "5",
        "--strategy",
        "every-1",
        "--micro-batches",
        "2",
        "--data",
        path,
    ];
    let found = json(&flags);
    assert_eq!(found["gradients"]["identical"], found["gradients"]["tensors"]);
    fs::remove_file(folder.path().join("7.txt")).unwrap();
    assert!(refused(&flags).contains("expected a text beside every image"));
    fs::write(folder.path().join("7.txt"), "a text of more than twelve bytes").unwrap();
    assert!(refused(&flags).contains("has 32 bytes of text, expected 1 to 12"));
}

#[test]
fn what_is_no_text_is_refused_and_what_is_learned_from_is_not_written_over() {
    let folder = tempdir().unwrap();
    let path = folder.path().join("book.txt");
    let name = path.to_str().unwrap();
    let (_, size) = MODELS[0];
    let train = [&["train", "--steps", "1", "--budget", "90%", "--data", name], size].concat();
    let mut binary = vec![b'a'; 4_000];
    binary[1_234] = 0;
    fs::write(&path, &binary).unwrap();
    let said = refused(&train);
    assert!(said.contains("book.txt` is not text: byte 1234 is zero") && said.contains("iconv"), "{said}");

    let text = "a text to learn from. ".repeat(200);
    fs::write(&path, &text).unwrap();
    let link = folder.path().join("link.txt");
    std::os::unix::fs::symlink(&path, &link).unwrap();
    for output in [name, link.to_str().unwrap()] {
        for flag in ["--save", "--trace", "--cache"] {
            let said = refused(&[&train[..], &[flag, output]].concat());
            assert!(said.contains(&format!("{flag} and --data are both")), "{said}");
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
    }

    fs::write(&path, "some twenty bytes long").unwrap();
    let output = rekindle(&train);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.contains("is too short to hold out a tenth of it"), "{said}");
}

#[test]
fn weights_are_saved_taken_up_again_and_sampled_from() {
    let folder = tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (model, size) = MODELS[1];
    let train = [&["train", "--model", model, "--strategy", "every-1", "--batch", "4"], size].concat();
    let first = json(&[&train[..], &["--steps", "30", "--save", &path("a.safetensors")]].concat());
    let second = json(&[&train[..], &["--steps", "5", "--weights", &path("a.safetensors")]].concat());
    let loss = |found: &Value, key: &str| found[key].as_f64().unwrap();
    assert!(loss(&second, "first_loss") < loss(&first, "first_loss") - 0.5, "{first} {second}");
    let sample = ["sample", &path("a.safetensors"), "--prompt", "The ", "--tokens", "40"];
    let found = json(&sample);
    assert_eq!(found["tokens"].as_array().unwrap().len(), 40);
    assert_eq!(json(&sample), found);
    let other = json(&[&sample[..], &["--seed", "2"]].concat());
    assert_ne!(other, found);
    let text = String::from_utf8(rekindle(&sample).stdout).unwrap();
    assert!(text.starts_with("The ") && text.len() > 40, "{text}");

    // Any other model, too.
    let (model, size) = MODELS[3];
    let net = [&["train", "--model", model, "--strategy", "every-1", "--steps", "2"], size].concat();
    json(&[&net[..], &["--save", &path("net.safetensors")]].concat());
    json(&[&net[..], &["--weights", &path("net.safetensors")]].concat());
    let said = refused(&["sample", &path("net.safetensors")]);
    assert!(said.contains("does not say what model it is of"), "{said}");
    let said = refused(&[&train[..], &["--weights", &path("net.safetensors")]].concat());
    assert!(said.contains("lacks `lm_head.weight`"), "{said}");

    let whole = fs::read(path("a.safetensors")).unwrap();
    fs::write(path("half.safetensors"), &whole[..whole.len() / 2]).unwrap();
    for run in [vec!["sample"], [&train[..], &["--weights"]].concat()] {
        let said = refused(&[&run[..], &[&path("half.safetensors")]].concat());
        assert!(said.contains("no whole safetensors file"), "{said}");
    }
    for (flag, value) in [("--temperature", "-1"), ("--prompt", ""), ("--tokens", "0")] {
        refused(&[&sample[..2], &[flag, value]].concat());
    }
    // A run that cannot be begun leaves what is there.
    refused(&[&train[..], &["--width", "33", "--save", &path("a.safetensors")]].concat());
    assert!(fs::read(path("a.safetensors")).unwrap() == whole);
}
