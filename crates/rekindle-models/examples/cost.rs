//! What checkpointing costs beside the recomputation, in instructions.
//!
//! ```text
//! cargo run --release --example cost                 counts the instructions of a step, each way; needs valgrind
//! cargo run --release --example cost -- plain 3      takes three steps one way: for a profiler
//! ```
//!
//! Times scatter on a busy machine by more than what is to be found; instructions do not scatter. `docs/measuring.md`
//! has what came out.

#![allow(clippy::print_stdout, reason = "it is a program to read the output of")]

use std::error::Error;
use std::process::Command;

use burn::module::{Module, ModuleVisitor, Param};
use burn::nn::attention::generate_autoregressive_mask;
use burn::tensor::{Bool, Device, Distribution, Gradients, Tensor};
use rekindle::Rule;
use rekindle_models::{Gpt, GptBlock, GptConfig};

/// The ways, and what each is held against.
const WAYS: [(&str, Option<&str>); 5] = [
    // The blocks called one after the other: Burn as it is.
    ("plain", None),
    // The same in a region that is turned off: what seeding costs.
    ("turned-off", Some("plain")),
    // A region that keeps everything.
    ("store-all", Some("plain")),
    // A checkpoint around every block but the last, written out on Burn's public API.
    ("by-hand", None),
    // The same by a region: what it takes beyond `by-hand` is the executor's.
    ("every-1", Some("by-hand")),
];

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [] => count(),
        [way, steps] => take(way, steps.parse()?),
        _ => Err("expected nothing, or a way and a number of steps".into()),
    }
}

/// The 24-block GPT of `rekindle bench`, without its embeddings and its head: blocks are what regions are about.
struct Model {
    gpt: Gpt,
    x: Tensor<3>,
    mask: Tensor<3, Bool>,
}

impl Model {
    fn new() -> Result<Self, Box<dyn Error>> {
        struct Look;
        impl ModuleVisitor for Look {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let _ = param.val();
            }
        }
        let device = Device::flex().autodiff();
        let gpt = GptConfig::new(256, 128, 4, 24, 128).init(&device)?;
        gpt.visit(&mut Look);
        let x = Tensor::random([4, 128, 128], Distribution::Default, &device);
        Ok(Self { gpt, x, mask: generate_autoregressive_mask(4, 128, &device) })
    }

    fn plain(&self) -> Gradients {
        let forward = |x: Tensor<3>, block: &GptBlock| block.forward(x, self.mask.clone());
        self.gpt.blocks().iter().fold(self.x.clone(), forward).mean().backward()
    }

    fn region(&self, rule: Rule) -> Result<Gradients, rekindle::Error> {
        let y = self.gpt.region(self.mask.clone()).rule(rule).forward(self.x.clone())?;
        rekindle::backward(&y.mean())
    }

    fn by_hand(&self) -> Vec<Gradients> {
        let Some((last, blocks)) = self.gpt.blocks().split_last() else { return Vec::new() };
        let mut inputs = Vec::with_capacity(blocks.len());
        let mut hidden = self.x.clone();
        for block in blocks {
            inputs.push(hidden.clone());
            hidden = block.clone().no_grad().forward(hidden, self.mask.clone());
        }
        let leaf = hidden.require_grad();
        let mut grads = last.forward(leaf.clone(), self.mask.clone()).mean().backward();
        let mut gradient = leaf.grad_remove(&mut grads);
        let mut all = vec![grads];
        for (block, input) in blocks.iter().zip(inputs).rev() {
            let leaf = input.require_grad();
            let y = block.forward(leaf.clone(), self.mask.clone());
            // The usual way to start a backward from a gradient; a region's is exact and free.
            let Some(incoming) = gradient.take() else { break };
            let mut grads = (y * incoming).sum().backward();
            gradient = leaf.grad_remove(&mut grads);
            all.push(grads);
        }
        all
    }
}

fn take(way: &str, steps: usize) -> Result<(), Box<dyn Error>> {
    let model = Model::new()?;
    for _ in 0..steps {
        match way {
            "plain" => drop(model.plain()),
            "turned-off" => drop(rekindle::without_checkpointing(|| model.region(Rule::StoreAll))?),
            "by-hand" => drop(model.by_hand()),
            rule => drop(model.region(rule.parse()?)?),
        }
    }
    Ok(())
}

/// Runs itself under valgrind: the second step of each way, because the first has more to do.
fn count() -> Result<(), Box<dyn Error>> {
    let this = std::env::current_exe()?;
    let instructions = |way: &str, steps: usize| -> Result<u64, Box<dyn Error>> {
        let mut valgrind = Command::new("valgrind");
        valgrind.args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]);
        // One thread: waiting for another one would be counted.
        let run = valgrind.arg(&this).arg(way).arg(steps.to_string()).env("RAYON_NUM_THREADS", "1").output();
        let run = run.map_err(|error| format!("valgrind cannot be run: {error}; install it"))?;
        let said = String::from_utf8_lossy(&run.stderr);
        let counted = said.lines().find_map(|line| line.split_once("I refs:"));
        let counted =
            counted.filter(|_| run.status.success()).map(|(_, count)| count.trim().replace(',', ""));
        Ok(counted.ok_or_else(|| format!("`{way}` failed under valgrind:\n{said}"))?.parse()?)
    };
    println!("instructions of a step: 24 blocks, width 128, 4 heads, batch 4, 128 tokens, dropout 0.1\n");
    let mut counts: Vec<(&str, u64)> = Vec::new();
    for (way, against) in WAYS {
        let count = instructions(way, 2)? - instructions(way, 1)?;
        let base = counts.iter().find(|(way, _)| Some(*way) == against);
        match base {
            Some((base, of)) => {
                let percent = 100.0 * (count as f64 / *of as f64 - 1.0);
                println!("{way:10} {:8.1} million  {percent:+.2}% of {base}", count as f64 / 1e6);
            }
            None => println!("{way:10} {:8.1} million", count as f64 / 1e6),
        }
        counts.push((way, count));
    }
    Ok(())
}
