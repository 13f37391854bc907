//! The profile of a GPT with 70 billion parameters, on whatever machine this is.
//!
//! ```text
//! cargo run --release -p rekindle-models --example trace_70b             sequences of 4,096 tokens, one at a time
//! cargo run --release -p rekindle-models --example trace_70b -- 8192 4   four sequences of 8,192 tokens
//! ```
//!
//! Nothing is computed and no parameter is allocated. The times are those of a data sheet: a GPU that reaches 400
//! trillion operations a second in matrix products and moves three terabytes a second.

#![allow(clippy::print_stdout, reason = "it is a program to read the output of")]

use std::error::Error;
use std::time::Instant;

use burn::tensor::Tensor;
use rekindle::memory::{self, CountingAllocator};
use rekindle::{Bytes, DeviceModel, Nodes, trace_model};
use rekindle_models::GptConfig;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::system();

fn main() -> Result<(), Box<dyn Error>> {
    let mut numbers = std::env::args().skip(1).map(|number| number.parse::<usize>());
    let sequence = numbers.next().transpose()?.unwrap_or(4096);
    let batch = numbers.next().transpose()?.unwrap_or(1);
    let gpu = DeviceModel {
        name: "gpu".to_owned(),
        matmul_flops_per_second: 400_000_000_000_000,
        memory_bytes_per_second: 3_000_000_000_000,
        overhead_ns_per_op: 5_000,
        tape_nodes: Nodes::default(),
    };
    let width = 8192;
    let start = Instant::now();
    let traced = trace_model("gpt-70b", &gpu, |device| {
        let gpt = GptConfig::new(32_000, width, 64, 80, sequence).init(device)?;
        let x = Tensor::<3>::empty([batch, sequence, width], device).require_grad();
        Ok::<_, Box<dyn Error>>((gpt.region(gpt.mask([batch, sequence], device)), x))
    })?;
    let time = start.elapsed();
    println!("{traced}");
    let stages = traced.profile().stages();
    let tapes: Bytes = stages.iter().map(|stage| stage.tape_bytes).sum();
    let inputs: Bytes = stages.iter().map(|stage| stage.output_bytes).sum();
    let parameters: Bytes = traced.stages().iter().map(|stage| stage.parameter_bytes).sum();
    println!("{} stages, {} of them different", stages.len(), traced.distinct_stages());
    println!("parameters of the blocks  {parameters}, {:.1} billion", parameters.get() as f64 / 4e9);
    println!("tapes of all blocks       {tapes}");
    println!("inputs of all blocks      {inputs}");
    println!("traced in                 {time:.2?}");
    println!("allocated at most         {}", memory::peak().unwrap_or_default());
    if let Some(resident) = resident_peak() {
        println!("resident at most          {resident}");
    }
    Ok(())
}

/// The most memory the process ever had, where the system tells.
fn resident_peak() -> Option<Bytes> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes::new(kibibytes * 1024))
}
