//! What checkpointing costs beside the recomputation, in instructions.
//!
//! ```text
//! cargo run --release --example cost                 counts the instructions of a step, each way; needs valgrind
//! cargo run --release --example cost -- 128 plain 3  takes three steps of 128 tokens one way: for a profiler
//! ```
//!
//! Times scatter on a busy machine by more than what is to be found; instructions do not scatter. Valgrind computes each
//! element of a fused multiply-add by itself, so a step of real size would take an hour. What is counted are steps of 8
//! and of 16 tokens; what a mechanism costs, and how that grows with the tokens, is in these. `docs/measuring.md` has
//! what came out.

#![allow(clippy::print_stdout, reason = "it is a program to read the output of")]

use std::error::Error;
use std::process::Command;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{Bool, Device, Distribution, Gradients, Tensor};
use rekindle::Rule;
use rekindle_models::{Gpt, GptBlock, GptConfig};

/// The ways, and what each is held against.
const WAYS: [(&str, Option<&str>); 4] = [
    // The blocks called one after the other: Burn as it is.
    ("plain", None),
    // A region that keeps everything.
    ("store-all", Some("plain")),
    // A checkpoint around every block but the last, written out on Burn's public API.
    ("by-hand", None),
    // The same by a region: what it takes beyond `by-hand` is the executor's.
    ("every-1", Some("by-hand")),
];

/// The tokens of the steps that are counted, and of the one in question: four sequences of 128.
const TOKENS: [usize; 2] = [8, 16];
const REAL: f64 = 512.0;

fn main() -> Result<(), Box<dyn Error>> {
    let _ = rekindle::memory::keep_freed();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.as_slice() {
        [] => count(),
        [tokens, way, steps] => take(tokens.parse()?, way, steps.parse()?),
        _ => Err("expected nothing, or a number of tokens, a way and a number of steps".into()),
    }
}

/// The 24-block GPT of `rekindle bench`, without its embeddings and its head: blocks are what regions are about.
struct Model {
    gpt: Gpt,
    x: Tensor<3>,
    mask: Option<Tensor<3, Bool>>,
}

impl Model {
    fn new(tokens: usize) -> Result<Self, Box<dyn Error>> {
        struct Look;
        impl ModuleVisitor for Look {
            fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
                let _ = param.val();
            }
        }
        let device = Device::flex().autodiff();
        let gpt = GptConfig::new(256, 128, 4, 24, 128).init(&device)?;
        gpt.visit(&mut Look);
        let x = Tensor::random([1, tokens, 128], Distribution::Default, &device);
        let mask = gpt.mask([1, tokens], &device);
        Ok(Self { gpt, x, mask })
    }

    fn plain(&self) -> Result<Gradients, rekindle::Error> {
        let forward = |x: Tensor<3>, block: &GptBlock| block.forward(x, self.mask.clone());
        Ok(self.gpt.blocks().iter().try_fold(self.x.clone(), forward)?.mean().backward())
    }

    fn region(&self, rule: Rule) -> Result<Gradients, rekindle::Error> {
        let y = self.gpt.region(self.mask.clone()).rule(rule).forward(self.x.clone())?;
        rekindle::backward(&y.mean())
    }

    fn by_hand(&self) -> Result<Vec<Gradients>, rekindle::Error> {
        let Some((last, blocks)) = self.gpt.blocks().split_last() else { return Ok(Vec::new()) };
        let mut inputs = Vec::with_capacity(blocks.len());
        let mut hidden = self.x.clone();
        for block in blocks {
            inputs.push(hidden.clone());
            hidden = block.clone().no_grad().forward(hidden, self.mask.clone())?;
        }
        let leaf = hidden.require_grad();
        let mut grads = last.forward(leaf.clone(), self.mask.clone())?.mean().backward();
        let mut gradient = leaf.grad_remove(&mut grads);
        let mut all = vec![grads];
        for (block, input) in blocks.iter().zip(inputs).rev() {
            let leaf = input.require_grad();
            let y = block.forward(leaf.clone(), self.mask.clone())?;
            // The usual way to start a backward from a gradient; a region's is exact and free.
            let Some(incoming) = gradient.take() else { break };
            let mut grads = (y * incoming).sum().backward();
            gradient = leaf.grad_remove(&mut grads);
            all.push(grads);
        }
        Ok(all)
    }
}

fn take(tokens: usize, way: &str, steps: usize) -> Result<(), Box<dyn Error>> {
    let model = Model::new(tokens)?;
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
    println!("million instructions of a step: 24 blocks of width 128, 4 heads, dropout 0.1, one thread\n");
    println!("{:10} {:>10} {:>10} {:>12} {:>12}", "", "8 tokens", "16 tokens", "512, at least", "own cost");
    let mut counts: Vec<(&str, [f64; 2])> = Vec::new();
    for (way, against) in WAYS {
        let mut counted = [0.0; 2];
        for (counted, tokens) in counted.iter_mut().zip(TOKENS) {
            *counted = (instructions(tokens, way, 2)? - instructions(tokens, way, 1)?) / 1e6;
        }
        // A straight line: attention grows faster than that, so a real step has more.
        let real = |[small, large]: [f64; 2]| {
            let slope = (large - small) / (TOKENS[1] - TOKENS[0]) as f64;
            small + slope * (REAL - TOKENS[0] as f64)
        };
        let own = match counts.iter().find(|(way, _)| Some(*way) == against) {
            None => String::new(),
            Some((base, of)) => {
                let own = [counted[0] - of[0], counted[1] - of[1]];
                let percent = 100.0 * real(own) / real(*of);
                format!("{:.2}, {:.2}; of 512 tokens {percent:.2}% of {base}", own[0], own[1])
            }
        };
        println!("{way:10} {:10.1} {:10.1} {:12.0}  {own}", counted[0], counted[1], real(counted));
        counts.push((way, counted));
    }
    Ok(())
}

fn instructions(tokens: usize, way: &str, steps: usize) -> Result<f64, Box<dyn Error>> {
    let mut valgrind = Command::new("valgrind");
    valgrind.args(["--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null"]);
    valgrind.arg(std::env::current_exe()?).args([&tokens.to_string(), way, &steps.to_string()]);
    // One thread: waiting for another one would be counted.
    let run = valgrind.env("RAYON_NUM_THREADS", "1").output();
    let run = run.map_err(|error| format!("valgrind cannot be run: {error}; install it"))?;
    let said = String::from_utf8_lossy(&run.stderr);
    let line = said.lines().find(|line| line.contains("refs:")).filter(|_| run.status.success());
    let count = line.and_then(|line| line.rsplit(' ').next()).map(|count| count.replace(',', ""));
    Ok(count.ok_or_else(|| format!("`{way}` failed under valgrind:\n{said}"))?.parse()?)
}
