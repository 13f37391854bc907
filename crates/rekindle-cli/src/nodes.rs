//! `rekindle bench --nodes`: each of our nodes beside what Burn does for the same.

use std::time::Instant;

use burn::nn::attention::generate_autoregressive_mask;
use burn::nn::{
    BatchNormConfig, DropoutConfig as BurnsDropoutConfig, GruConfig, LayerNormConfig, LinearConfig,
    LstmConfig, RmsNormConfig,
};
use burn::tensor::activation::{gelu as burns_gelu, log_softmax, relu, silu, softmax as burns_softmax};
use burn::tensor::{Device, Distribution, Gradients, Int, Tensor};
use rekindle::activation::{gelu, swiglu};
use rekindle::nn::{
    LinearCrossEntropy, batch_norm, batch_norm_relu, gru, layer_norm, linear, lstm, rms_norm,
};
use rekindle::training::Precision;
use rekindle::{Attention, Bytes, DropoutConfig, Error, Nanos, memory};
use serde::Serialize;

use crate::arguments::BenchArguments;
use crate::failure::Failure;
use crate::measure::median;
use crate::size::{For, Size};
use crate::{device, report};

#[derive(Serialize)]
struct Nodes {
    rounds: u32,
    rows: Vec<Row>,
}

/// Forward and backward of one node, from its inputs to their gradients.
#[derive(Serialize)]
struct Row {
    node: String,
    /// The most bytes above those before.
    peak_bytes: Bytes,
    burn_peak_bytes: Bytes,
    /// The medians.
    ns: Nanos,
    burn_ns: Nanos,
    /// The median, over the rounds, of our time over Burn's in the same round.
    time_ratio: f64,
}

type Step<'a> = Box<dyn Fn() -> Result<Gradients, Error> + 'a>;

/// Runs the command.
pub(crate) fn run(arguments: &BenchArguments) -> Result<(), Failure> {
    let size = &arguments.size.size(For::Figures)?;
    if size.precision != Precision::F32 {
        return Err(Failure::request(
            anyhow::anyhow!("--precision {} is given with --nodes, expected f32", size.precision),
            "leave one of the two out: nodes are compared as Burn has them, in f32",
        ));
    }
    // Sizes that no model has are no node's either.
    size.stages()?;
    let device = device::cpu();
    device.seed(size.seed);
    rekindle::seed(size.seed);
    let mut rows = Vec::new();
    for (node, ours, burns) in nodes(size, &device)? {
        let bar = report::bar(u64::from(arguments.rounds), "measuring");
        bar.set_message(node.clone());
        // The first of each warms the machine up.
        measured(&ours)?;
        measured(&burns)?;
        let (mut of_ours, mut of_burns) = (Vec::new(), Vec::new());
        for _ in 0..arguments.rounds {
            of_ours.push(measured(&ours)?);
            of_burns.push(measured(&burns)?);
            bar.inc(1);
        }
        bar.finish_and_clear();
        let middle = |of: &[(Bytes, Nanos)]| {
            let peaks: Vec<_> = of.iter().map(|(peak, _)| *peak).collect();
            let times: Vec<_> = of.iter().map(|(_, time)| *time).collect();
            (median(&peaks).unwrap_or_default(), median(&times).unwrap_or_default())
        };
        let ratios: Vec<_> =
            of_ours.iter().zip(&of_burns).map(|((_, ours), (_, burns))| ours.ratio(*burns)).collect();
        let ((peak_bytes, ns), (burn_peak_bytes, burn_ns)) = (middle(&of_ours), middle(&of_burns));
        let time_ratio = median(&ratios).unwrap_or(1.0);
        rows.push(Row { node, peak_bytes, burn_peak_bytes, ns, burn_ns, time_ratio });
    }
    let nodes = Nodes { rounds: arguments.rounds, rows };
    match arguments.json {
        true => report::show_json(&nodes),
        false => show(&nodes),
    }
}

fn show(nodes: &Nodes) -> Result<(), Failure> {
    let rows = nodes.rows.iter().map(|row| {
        [
            row.node.clone(),
            row.burn_peak_bytes.to_string(),
            row.peak_bytes.to_string(),
            report::percent_of(row.peak_bytes, row.burn_peak_bytes),
            row.burn_ns.to_string(),
            row.ns.to_string(),
            format!("{:.2}x", row.time_ratio),
        ]
    });
    let header = ["node", "Burn's peak", "ours", "of Burn's", "Burn's time", "ours", "of Burn's"];
    report::show(&report::table(header, rows))?;
    report::show(&format!(
        "\nforward and backward of each, medians of {} in turns; peak: the most bytes above those before, gradients included",
        nodes.rounds
    ))
}

fn measured(step: &Step<'_>) -> Result<(Bytes, Nanos), Error> {
    rekindle::sweep();
    let before = memory::live().unwrap_or_default();
    memory::reset_peak();
    let start = Instant::now();
    let gradients = step()?;
    let time = start.elapsed().into();
    drop(gradients);
    Ok((memory::peak().unwrap_or_default().saturating_sub(before), time))
}

/// The sizes are the model's; those that make a node worth it are named beside it.
fn nodes<'a>(size: &Size, device: &'a Device) -> Result<Vec<(String, Step<'a>, Step<'a>)>, Failure> {
    let (batch, sequence, width, heads, prob) =
        (size.batch, size.sequence, size.width, size.heads, size.dropout);
    let depth = width / heads;
    let random3 = |shape: [usize; 3]| Tensor::<3>::random(shape, Distribution::Normal(0.0, 1.0), device);
    let mut nodes: Vec<(String, Step<'a>, Step<'a>)> = Vec::new();

    for tokens in [sequence, 4096] {
        let by_head = [(); 3].map(|()| {
            let x = random3([1, tokens, width]).reshape([1, tokens, heads, depth]).swap_dims(1, 2);
            x.detach().require_grad()
        });
        let again = by_head.clone();
        let mask = generate_autoregressive_mask(1, tokens, device);
        nodes.push((
            format!("causal attention, {tokens} tokens, {heads} heads of {depth}"),
            Box::new(move || {
                let [query, key, value] = by_head.clone();
                Ok(Attention::new().causal().forward(query, key, value)?.sum().backward())
            }),
            Box::new(move || {
                let [query, key, value] = again.clone();
                let scores = query.matmul(key.transpose()).div_scalar((depth as f32).sqrt());
                let hidden = mask.clone().unsqueeze_dim::<4>(1).expand(scores.shape());
                let weights = burns_softmax(scores.mask_fill(hidden, f32::NEG_INFINITY), 3);
                Ok(weights.matmul(value).sum().backward())
            }),
        ));
    }

    let rows = batch * sequence;
    let classes = 50_257;
    let x = random3([1, rows, width]).reshape([rows, width]).require_grad();
    let head = LinearConfig::new(width, classes).init(device);
    let targets = (0..rows as i64).map(|row| row * 97 % classes as i64).collect::<Vec<_>>();
    let targets = Tensor::<1, Int>::from_data(burn::tensor::TensorData::new(targets, [rows]), device);
    let (x2, head2, targets2) = (x.clone(), head.clone(), targets.clone());
    nodes.push((
        format!("linear cross entropy, {rows} rows, {classes} classes"),
        Box::new(move || {
            let (weight, bias) = (head.weight.val(), head.bias.as_ref().map(|bias| bias.val()));
            Ok(LinearCrossEntropy::new().forward(x.clone(), weight, bias, targets.clone())?.backward())
        }),
        Box::new(move || {
            let logs = log_softmax(head2.forward(x2.clone()), 1);
            Ok(logs.gather(1, targets2.clone().reshape([rows, 1])).mean().neg().backward())
        }),
    ));

    let x = random3([batch, sequence, width]).require_grad();
    let layer = LinearConfig::new(width, 4 * width).init(device);
    let (x2, layer2) = (x.clone(), layer.clone());
    nodes.push((
        format!("linear, {rows} rows, {width} to {}", 4 * width),
        Box::new(move || {
            let (weight, bias) = (layer.weight.val(), layer.bias.as_ref().map(|bias| bias.val()));
            Ok(linear(x.clone(), weight, bias).sum().backward())
        }),
        Box::new(move || Ok(layer2.forward(x2.clone()).sum().backward())),
    ));

    let x = random3([batch, sequence, width]).require_grad();
    let config = LayerNormConfig::new(width);
    let (norm, epsilon) = (config.init(device), config.epsilon);
    let (x2, norm2) = (x.clone(), norm.clone());
    nodes.push((
        format!("layer norm, {rows} rows of {width}"),
        Box::new(move || {
            let beta = norm.beta.as_ref().map(|beta| beta.val());
            Ok(layer_norm(x.clone(), norm.gamma.val(), beta, epsilon).sum().backward())
        }),
        Box::new(move || Ok(norm2.forward(x2.clone()).sum().backward())),
    ));

    let x = random3([batch, sequence, width]).require_grad();
    let config = RmsNormConfig::new(width);
    let (norm, epsilon) = (config.init(device), config.epsilon);
    let (x2, norm2) = (x.clone(), norm.clone());
    nodes.push((
        format!("rms norm, {rows} rows of {width}"),
        Box::new(move || Ok(rms_norm(x.clone(), norm.gamma.val(), epsilon).sum().backward())),
        Box::new(move || Ok(norm2.forward(x2.clone()).sum().backward())),
    ));

    let (pixels, channels) = (32, width.div_ceil(2));
    let images = [(); 2].map(|()| {
        let x = random3([batch, channels, pixels * pixels]).reshape([batch, channels, pixels, pixels]);
        x.detach().require_grad()
    });
    let what = format!("{batch} images of {pixels} by {pixels}, {channels} channels");
    let norm = BatchNormConfig::new(channels).init(device);
    let ([x, y], norm2) = (images, norm.clone());
    let (x2, y2) = (x.clone(), y.clone());
    let (norm3, norm4) = (norm.clone(), norm.clone());
    nodes.push((
        format!("batch norm, {what}"),
        Box::new(move || Ok(batch_norm(x.clone(), &norm).sum().backward())),
        Box::new(move || Ok(norm2.forward(x2.clone()).sum().backward())),
    ));
    nodes.push((
        format!("batch norm and rectifier, {what}"),
        Box::new(move || Ok(batch_norm_relu(y.clone(), &norm3).sum().backward())),
        Box::new(move || Ok(relu(norm4.forward(y2.clone())).sum().backward())),
    ));

    let x = random3([batch, sequence, 4 * width]).require_grad();
    let x2 = x.clone();
    nodes.push((
        format!("gelu, {rows} rows of {}", 4 * width),
        Box::new(move || Ok(gelu(x.clone()).sum().backward())),
        Box::new(move || Ok(burns_gelu(x2.clone()).sum().backward())),
    ));

    let [gate, up] = [(); 2].map(|()| random3([batch, sequence, 4 * width]).require_grad());
    let (gate2, up2) = (gate.clone(), up.clone());
    nodes.push((
        format!("swiglu, {rows} rows of {}", 4 * width),
        Box::new(move || Ok(swiglu(gate.clone(), up.clone()).sum().backward())),
        Box::new(move || Ok((silu(gate2.clone()) * up2.clone()).sum().backward())),
    ));

    let x = random3([batch, sequence, width]).require_grad();
    let (dropout, burns) = (DropoutConfig::new(prob).init()?, BurnsDropoutConfig::new(prob).init());
    let x2 = x.clone();
    nodes.push((
        format!("dropout and residual, {rows} rows of {width}"),
        Box::new(move || Ok(dropout.add(x.clone(), x.clone() * 2.0).sum().backward())),
        Box::new(move || Ok((x2.clone() + burns.forward(x2.clone() * 2.0)).sum().backward())),
    ));

    let x = random3([batch, sequence, width]).require_grad();
    let layer = LinearConfig::new(2 * width, 4 * width).init(device);
    let burns = LstmConfig::new(width, width, true).init(device);
    let x2 = x.clone();
    nodes.push((
        format!("lstm, {sequence} steps of {batch} sequences, width {width}"),
        Box::new(move || {
            let start = Tensor::zeros([batch, 2 * width], device);
            let bias = layer.bias.as_ref().map(|bias| bias.val());
            let state = lstm(start, x.clone(), layer.weight.val(), bias);
            Ok(state.narrow(1, 0, width).sum().backward())
        }),
        Box::new(move || Ok(burns.forward(x2.clone(), None).1.hidden.sum().backward())),
    ));

    let x = random3([batch, sequence, width]).require_grad();
    let layers = [2 * width, width].map(|columns| LinearConfig::new(2 * width, columns).init(device));
    let burns = GruConfig::new(width, width, true).with_reset_after(false).init(device);
    let x2 = x.clone();
    nodes.push((
        format!("gru, {sequence} steps of {batch} sequences, width {width}"),
        Box::new(move || {
            let [gates, new] = layers
                .each_ref()
                .map(|layer| (layer.weight.val(), layer.bias.as_ref().map(|bias| bias.val())));
            Ok(gru(Tensor::zeros([batch, width], device), x.clone(), gates, new).sum().backward())
        }),
        Box::new(move || {
            let states = burns.forward(x2.clone(), None);
            Ok(states.narrow(1, sequence - 1, 1).sum().backward())
        }),
    ));
    Ok(nodes)
}
