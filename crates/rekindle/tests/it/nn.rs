//! Linear layers, norms and the loss as nodes, against Burn's: the same values and gradients, within rounding.

use std::sync::MutexGuard;

use burn::nn::{Embedding, EmbeddingConfig, LayerNormConfig, LinearConfig, RmsNormConfig};
use burn::tensor::{DType, Distribution, Int, Tensor, TensorData, Tolerance, activation::log_softmax};
use rekindle::nn::{LinearCrossEntropy, Rotary, add, layer_norm, linear, rms_norm};
use rekindle::{DropoutConfig, Error};

use crate::common::*;

fn normal<const D: usize>(shape: [usize; D], dtype: DType) -> Tensor<D> {
    Tensor::<D>::random(shape, Distribution::Normal(0.0, 1.0), &device()).cast(dtype)
}

/// One test at a time, and the same numbers in every run.
fn seeded() -> MutexGuard<'static, ()> {
    let alone = alone();
    device().seed(9);
    alone
}

/// The output of `function`, and the gradients of what it is given, all as vectors.
fn run<const D: usize, const N: usize>(
    inputs: &[Tensor<1>; N],
    function: impl Fn([Tensor<1>; N]) -> Tensor<D>,
) -> Vec<TensorData> {
    let inputs = inputs.clone().map(|input| input.detach().require_grad());
    let output = function(inputs.clone());
    let shape = output.shape();
    let weights = Tensor::<1, Int>::arange(0..shape.num_elements() as i64, &device());
    let weights = weights.float().sin().cast(output.dtype()).reshape(shape);
    let gradients = (output.clone() * weights).sum().backward();
    let of_inputs = inputs.iter().map(|input| input.grad(&gradients).unwrap().into_data());
    [output.into_data()].into_iter().chain(of_inputs).collect()
}

fn agree(found: &[TensorData], expected: &[TensorData]) {
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!((found.dtype(), found.shape()), (expected.dtype(), expected.shape()));
        match found.dtype() {
            DType::F64 => found.assert_approx_eq::<f64>(expected, Tolerance::absolute(1e-6)),
            _ => found.assert_approx_eq::<f32>(expected, Tolerance::rel_abs(1e-4, 3e-5)),
        }
    }
}

#[test]
fn a_linear_layer_agrees_with_burns() {
    let _alone = seeded();
    for dtype in [DType::F32, DType::F64] {
        for [batch, rows, from, to] in [[1, 1, 3, 2], [2, 5, 7, 4], [3, 130, 33, 65]] {
            let x = normal([batch * rows * from], dtype);
            let (weight, bias) = (normal([from * to], dtype), normal([to], dtype));
            let shaped = |x: Tensor<1>, weight: Tensor<1>| {
                (x.reshape([batch, rows, from]), weight.reshape([from, to]))
            };
            type Layer = fn(Tensor<3>, Tensor<2>, Option<Tensor<1>>) -> Tensor<3>;
            let with = |layer: Layer| {
                run(&[x.clone(), weight.clone(), bias.clone()], |[x, weight, bias]| {
                    let (x, weight) = shaped(x, weight);
                    layer(x, weight, Some(bias))
                })
            };
            agree(&with(linear), &with(burn::tensor::module::linear));
            let without = |layer: Layer| {
                run(&[x.clone(), weight.clone()], |[x, weight]| {
                    let (x, weight) = shaped(x, weight);
                    layer(x, weight, None)
                })
            };
            agree(&without(linear), &without(burn::tensor::module::linear));
        }
    }
}

#[test]
fn a_frozen_weight_has_no_gradient_and_the_input_has_one() {
    let _alone = seeded();
    let layer = LinearConfig::new(4, 3).init(&device());
    let x = normal([2, 4], DType::F32).require_grad();
    let weight = layer.weight.val().detach().set_require_grad(false);
    let y = linear(x.clone(), weight.clone(), None);
    let gradients = y.sum().backward();
    assert!(weight.grad(&gradients).is_none());
    let expected = weight.sum_dim(1).transpose().repeat_dim(0, 2);
    x.grad(&gradients)
        .unwrap()
        .into_data()
        .assert_approx_eq::<f32>(&expected.into_data(), Tolerance::absolute(1e-5));
}

#[test]
fn a_batch_of_nothing_leaves_the_weights_gradients_of_zero() {
    let _alone = seeded();
    let weight = normal([4, 3], DType::F32).require_grad();
    let y = linear(Tensor::<2>::zeros([0, 4], &device()), weight.clone(), None);
    assert_eq!(y.dims(), [0, 3]);
    let gradient = weight.grad(&y.sum().backward()).unwrap().into_data();
    assert!(gradient.iter::<f32>().count() == 12 && gradient.iter::<f32>().all(|x| x == 0.0));
}

#[test]
fn norms_agree_with_burns() {
    let _alone = seeded();
    for dtype in [DType::F32, DType::F64] {
        for [rows, width] in [[1, 1], [3, 7], [200, 33], [70, 128]] {
            let inputs =
                [normal([rows * width], dtype) * 3.0 + 1.0, normal([width], dtype), normal([width], dtype)];
            let layer = |norm: fn(Tensor<2>, Tensor<1>, Option<Tensor<1>>, f64) -> Tensor<2>| {
                run(&inputs, |[x, gamma, beta]| norm(x.reshape([rows, width]), gamma, Some(beta), 1e-5))
            };
            agree(&layer(layer_norm), &layer(burn::tensor::module::layer_norm));
            let [x, gamma, _] = &inputs;
            let without = |norm: fn(Tensor<2>, Tensor<1>, Option<Tensor<1>>, f64) -> Tensor<2>| {
                run(&[x.clone(), gamma.clone()], |[x, gamma]| {
                    norm(x.reshape([rows, width]), gamma, None, 1e-5)
                })
            };
            agree(&without(layer_norm), &without(burn::tensor::module::layer_norm));
            let ours = run(&[x.clone(), gamma.clone()], |[x, gamma]| {
                rms_norm(x.reshape([rows, width]), gamma, 1e-5)
            });
            let burns = run(&[x.clone(), gamma.clone()], |[x, gamma]| {
                let x = x.reshape([rows, width]);
                let mean = x.clone().powf_scalar(2.0).mean_dim(1);
                x / (mean + 1e-5).sqrt() * gamma.unsqueeze()
            });
            agree(&ours, &burns);
        }
    }
}

#[test]
fn norms_run_on_the_parameters_of_burns_modules() {
    let _alone = seeded();
    let x = normal([4, 6], DType::F32);
    let layer = LayerNormConfig::new(6).init(&device());
    let found = layer_norm(x.clone(), layer.gamma.val(), layer.beta.as_ref().map(|beta| beta.val()), 1e-5);
    agree(&[found.into_data()], &[layer.forward(x.clone()).into_data()]);
    let layer = RmsNormConfig::new(6).init(&device());
    let found = rms_norm(x.clone(), layer.gamma.val(), layer.epsilon);
    agree(&[found.into_data()], &[layer.forward(x).into_data()]);
}

/// A balanced tape runs cheap nodes again: with the same bits.
#[test]
fn a_balanced_tape_gives_the_same_gradients() {
    let _alone = seeded();
    let step = |device: burn::tensor::Device| {
        let on = |tensor: Tensor<1>| Tensor::<1>::from_data(tensor.into_data(), &device);
        device.seed(4);
        rekindle::seed(4);
        let random = |length: usize| on(Tensor::random([length], Distribution::Normal(0.0, 1.0), &device));
        let x = random(12).require_grad();
        let (gamma, beta, weight) = (random(4).require_grad(), random(4), random(16).require_grad());
        let normed = layer_norm(x.clone().reshape([3, 4]), gamma.clone(), Some(beta), 1e-5);
        let hidden = linear(normed, weight.clone().reshape([4, 4]), None);
        let dropout = DropoutConfig::new(0.4).init().unwrap();
        let y = dropout.add(x.clone().reshape([3, 4]), rekindle::activation::gelu(hidden));
        let gradients = y.powf_scalar(2.0).sum().backward();
        [&x, &gamma, &weight].map(|of| bytes(&of.grad(&gradients).unwrap()))
    };
    assert!(step(device()) == step(device().gradient_checkpointing()));
}

#[test]
fn a_residual_is_added_to_what_dropout_leaves() {
    let _alone = seeded();
    let dropout = DropoutConfig::new(0.3).init().unwrap();
    let inputs = [normal([5000], DType::F32), normal([5000], DType::F32)];
    let ours = run(&inputs, |[residual, x]| {
        rekindle::seed(3);
        dropout.add(residual, x)
    });
    let apart = run(&inputs, |[residual, x]| {
        rekindle::seed(3);
        residual + dropout.forward(x)
    });
    assert_eq!(ours, apart);
}

#[test]
fn a_sum_is_burns() {
    let _alone = seeded();
    for (length, dtype) in [(5, DType::F32), (70_000, DType::F32), (5000, DType::BF16), (50, DType::F64)] {
        let inputs = [normal([length], dtype), normal([length], dtype)];
        let ours = run(&inputs, |[around, through]| add(around, through));
        assert_eq!(ours, run(&inputs, |[around, through]| around + through), "{length} of {dtype:?}");
    }
    // One spread over the other, and both of them the same.
    let inputs = [normal([1], DType::F32), normal([8], DType::F32)];
    let spread = run(&inputs, |[around, through]| add(around, through));
    assert_eq!(spread, run(&inputs, |[around, through]| around + through));
    let x = normal([8], DType::F32);
    let twice = run(std::array::from_ref(&x), |[x]| add(x.clone(), x));
    assert_eq!(twice, run(std::array::from_ref(&x), |[x]| x.clone() + x));
}

/// The loss with all logits held.
fn whole(logits: Tensor<2>, targets: &[i64], ignored: Option<i64>, smoothing: f64, sum: bool) -> Tensor<1> {
    let [rows, classes] = logits.dims();
    let counts: Vec<f64> = targets.iter().map(|t| f64::from(u8::from(Some(*t) != ignored))).collect();
    let classes_of: Vec<i64> = targets.iter().map(|t| if Some(*t) == ignored { 0 } else { *t }).collect();
    let counted: f64 = counts.iter().sum();
    let dtype = logits.dtype();
    let counts = Tensor::<2>::from_data(TensorData::new(counts, [rows, 1]), (&device(), dtype));
    let classes_of = Tensor::<2, Int>::from_data(TensorData::new(classes_of, [rows, 1]), &device());
    let logs = log_softmax(logits, 1);
    let each = logs.clone().gather(1, classes_of) * (1.0 - smoothing)
        + logs.sum_dim(1) * (smoothing / classes as f64);
    (each * counts).sum().neg() / if sum { 1.0 } else { counted.max(1.0) }
}

#[test]
fn the_loss_agrees_with_that_of_all_logits() {
    let _alone = seeded();
    for dtype in [DType::F32, DType::F64] {
        for [rows, features, classes] in [[1, 2, 3], [7, 5, 300], [70, 16, 2600]] {
            let inputs = [
                normal([rows * features], dtype),
                normal([features * classes], dtype),
                normal([classes], dtype),
            ];
            let targets: Vec<i64> = (0..rows as i64).map(|row| row * 37 % classes as i64).collect();
            let given = Tensor::<1, Int>::from_data(TensorData::new(targets.clone(), [rows]), &device());
            for (ignored, smoothing, sum, chunk) in
                [(None, 0.0, false, None), (Some(37), 0.1, true, Some(1)), (Some(0), 0.25, false, Some(rows))]
            {
                let mut loss = LinearCrossEntropy::new().smoothing(smoothing);
                if let Some(ignored) = ignored {
                    loss = loss.ignore(ignored);
                }
                if sum {
                    loss = loss.sum();
                }
                if let Some(chunk) = chunk {
                    loss = loss.chunk(chunk);
                }
                let ours = run(&inputs, |[x, weight, bias]| {
                    let (x, weight) = (x.reshape([rows, features]), weight.reshape([features, classes]));
                    loss.forward(x, weight, Some(bias), given.clone()).unwrap()
                });
                let expected = run(&inputs, |[x, weight, bias]| {
                    let (x, weight) = (x.reshape([rows, features]), weight.reshape([features, classes]));
                    let logits = x.matmul(weight) + bias.unsqueeze();
                    whole(logits, &targets, ignored, f64::from(smoothing), sum)
                });
                agree(&ours, &expected);
            }
        }
    }
}

#[test]
fn a_loss_without_a_bias_agrees_in_every_type() {
    let _alone = seeded();
    for dtype in [DType::F32, DType::F64] {
        let inputs = [normal([4 * 3], dtype), normal([3 * 7], dtype)];
        let shaped = |x: Tensor<1>, weight: Tensor<1>| (x.reshape([4, 3]), weight.reshape([3, 7]));
        let ours = run(&inputs, |[x, weight]| {
            let (x, weight) = shaped(x, weight);
            let targets = Tensor::<1, Int>::from_data([6, 0, 3, 3], &device());
            LinearCrossEntropy::new().forward(x, weight, None, targets).unwrap()
        });
        let expected = run(&inputs, |[x, weight]| {
            let (x, weight) = shaped(x, weight);
            whole(x.matmul(weight), &[6, 0, 3, 3], None, 0.0, false)
        });
        agree(&ours, &expected);
    }
}

#[test]
fn the_loss_of_an_embedding_that_is_the_head_too() {
    let _alone = seeded();
    let embedding: Embedding = EmbeddingConfig::new(40, 8).init(&device());
    settle(&embedding);
    let tokens = Tensor::<2, Int>::from_data([[3, 5, 39]], &device());
    let targets = [5, 39, 0];
    let step = |loss: &dyn Fn(Tensor<2>, Tensor<2>) -> Tensor<1>| {
        let x = embedding.forward(tokens.clone()).reshape([3, 8]);
        let loss = loss(x, embedding.weight.val().transpose());
        let gradients = loss.backward();
        [loss.into_data(), embedding.weight.val().grad(&gradients).unwrap().into_data()]
    };
    let found = step(&|x, weight| {
        let targets = Tensor::<1, Int>::from_data(targets, &device());
        LinearCrossEntropy::new().forward(x, weight, None, targets).unwrap()
    });
    agree(&found, &step(&|x, weight| whole(x.matmul(weight), &targets, None, 0.0, false)));
}

#[test]
fn the_loss_is_the_same_on_any_number_of_threads_and_zero_of_nothing() {
    let _alone = seeded();
    let inputs = [normal([60 * 8], DType::F32), normal([8 * 5000], DType::F32)];
    let step = |targets: Vec<i64>| {
        run(&inputs, |[x, weight]| {
            let targets = Tensor::<1, Int>::from_data(TensorData::new(targets.clone(), [60]), &device());
            let loss = LinearCrossEntropy::new().chunk(32).ignore(-1);
            loss.forward(x.reshape([60, 8]), weight.reshape([8, 5000]), None, targets).unwrap()
        })
    };
    let on = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| step((0..60).map(|row| row * 83).collect()))
    };
    let found = on(1);
    assert!(on(2) == found && on(5) == found);
    for nothing in step(vec![-1; 60]) {
        assert!(nothing.iter::<f32>().all(|x| x == 0.0));
    }
}

#[test]
fn a_loss_that_cannot_be_is_refused() {
    let _alone = seeded();
    let refused = |loss: LinearCrossEntropy, weight: [usize; 2], bias: usize, targets: &[i64]| {
        let targets = TensorData::new(targets.to_vec(), [targets.len()]);
        let targets = Tensor::<1, Int>::from_data(targets, &device());
        let bias = Some(Tensor::<1>::zeros([bias], &device()));
        let (x, weight) = (Tensor::<2>::zeros([2, 3], &device()), Tensor::zeros(weight, &device()));
        loss.forward(x, weight, bias, targets).unwrap_err()
    };
    let loss = LinearCrossEntropy::new;
    let error = refused(loss(), [4, 5], 5, &[0, 1]);
    assert!(matches!(error, Error::LossShape { what: "weights", .. }), "{error}");
    let error = refused(loss(), [3, 5], 4, &[0, 1]);
    assert!(matches!(error, Error::LossShape { what: "a bias", .. }), "{error}");
    let error = refused(loss(), [3, 5], 5, &[0, 1, 2]);
    assert!(matches!(error, Error::LossShape { what: "targets", .. }), "{error}");
    for target in [5, -1, i64::from(i32::MAX)] {
        let error = refused(loss().ignore(-100), [3, 5], 5, &[0, target]);
        assert!(matches!(error, Error::LossTarget { row: 1, classes: 5, .. }), "{error}");
    }
    for chunk in [0, 3] {
        let error = refused(loss().chunk(chunk), [3, 5], 5, &[0, 1]);
        assert!(matches!(error, Error::LossChunk { rows: 2, .. }), "{error}");
    }
    for smoothing in [-0.1, 1.5, f32::NAN] {
        let error = refused(loss().smoothing(smoothing), [3, 5], 5, &[0, 1]);
        assert!(matches!(error, Error::LossSmoothing { .. }), "{error}");
    }
}

/// Turns pairs that lie half a head apart, one element after the other.
fn rotated(x: &[f32], [places, heads, depth]: [usize; 3], base: f64) -> Vec<f32> {
    let mut y = vec![0.0; x.len()];
    for (index, y) in y.iter_mut().enumerate() {
        let (element, place) = (index % depth, index / (heads * depth) % places);
        let half = depth / 2;
        let pair = element % half;
        let angle = place as f64 * base.powf(-2.0 * pair as f64 / depth as f64);
        let first = index - element + pair;
        let (a, b) = (f64::from(x[first]), f64::from(x[first + half]));
        let turned = match element < half {
            true => a * angle.cos() - b * angle.sin(),
            false => b * angle.cos() + a * angle.sin(),
        };
        *y = turned as f32;
    }
    y
}

#[test]
fn rotary_positions_turn_pairs_and_their_gradients_back() {
    let _alone = seeded();
    for [batch, places, heads, depth] in [[1, 1, 1, 2], [2, 5, 3, 8], [3, 70, 4, 32]] {
        let rotary = Rotary::new(depth, places, 500.0);
        let count = batch * places * heads * depth;
        let x = normal([count], DType::F32).require_grad();
        let y = rotary.forward(x.clone().reshape([batch, places, heads * depth])).unwrap();
        let values: Vec<f32> = x.to_data().try_to_vec().unwrap();
        let expected = TensorData::new(rotated(&values, [places, heads, depth], 500.0), y.shape());
        y.to_data().assert_approx_eq::<f32>(&expected, Tolerance::absolute(1e-5));
        // A rotation keeps lengths, so the gradient of half of the squared length is the input itself.
        let gradients = (y.clone() * y.clone()).sum().mul_scalar(0.5).backward();
        let found = x.grad(&gradients).unwrap();
        found.to_data().assert_approx_eq::<f32>(&x.to_data(), Tolerance::absolute(1e-5));
        // Without autodiff, and of a type that has no kernel.
        let plain = rotary.forward(x.clone().inner().reshape([batch, places, heads * depth])).unwrap();
        plain.into_data().assert_approx_eq::<f32>(&expected, Tolerance::absolute(1e-5));
        let wide = x.clone().cast(DType::F64).detach().require_grad();
        let y = rotary.forward(wide.clone().reshape([batch, places, heads * depth])).unwrap();
        let gradients = (y.clone() * y).sum().mul_scalar(0.5).backward();
        let found = wide.grad(&gradients).unwrap();
        found.to_data().assert_approx_eq::<f64>(&wide.to_data(), Tolerance::absolute(1e-5));
    }
}

#[test]
fn rotary_positions_of_another_length_or_odd_heads_are_refused() {
    let _alone = seeded();
    let x = || normal([24], DType::F32).reshape([1, 4, 6]);
    assert!(Rotary::new(2, 4, 1e4).forward(x()).is_ok());
    for (depth, places) in [(2, 3), (2, 5), (3, 4), (4, 4), (0, 4)] {
        let refused = Rotary::new(depth, places, 1e4).forward(x());
        assert!(matches!(refused, Err(Error::Rotary { sequence: 4, width: 6, .. })), "{depth}, {places}");
    }
}
