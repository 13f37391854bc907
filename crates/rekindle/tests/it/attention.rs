//! Attention in blocks against attention with all scores: the same values and gradients, within rounding.

use burn::module::Module;
use burn::tensor::{Bool, DType, Distribution, Int, Tensor, TensorData, Tolerance, activation::softmax};
use rekindle::{Attention, Dropout, DropoutConfig, Error, Region, Rule};

use crate::common::*;

/// One case.
#[derive(Clone, Copy, Debug)]
struct Case {
    heads: usize,
    groups: usize,
    queries: usize,
    keys: usize,
    depth: usize,
    value_depth: usize,
    causal: bool,
    hide: bool,
    drop: bool,
}

const BATCH: usize = 2;
const SMALL: Case = Case {
    heads: 2,
    groups: 2,
    queries: 5,
    keys: 5,
    depth: 4,
    value_depth: 4,
    causal: false,
    hide: false,
    drop: false,
};

impl Case {
    fn inputs(&self, dtype: DType) -> [Tensor<4>; 3] {
        device().seed(3);
        // As models make them: heads side by side, looked at head by head.
        let make = |heads: usize, rows: usize, depth: usize| {
            let x =
                Tensor::<4>::random([BATCH, rows, heads, depth], Distribution::Normal(0.0, 1.0), &device());
            x.cast(dtype).swap_dims(1, 2)
        };
        [
            make(self.heads, self.queries, self.depth),
            make(self.groups, self.keys, self.depth),
            make(self.groups, self.keys, self.value_depth),
        ]
    }

    fn hidden(&self) -> Tensor<2, Bool> {
        // The second batch hides its first two keys: with causal attention two queries have nothing to look at.
        let hidden = (0..BATCH * self.keys).map(|index| index >= self.keys && index < self.keys + 2);
        let hidden = TensorData::new(hidden.collect::<Vec<_>>(), [BATCH, self.keys]);
        Tensor::from_data(hidden, &device())
    }

    fn ours(&self, [query, key, value]: [Tensor<4>; 3]) -> Tensor<4> {
        let mut attention = Attention::new();
        if self.causal {
            attention = attention.causal();
        }
        if self.hide {
            attention = attention.hide_keys(self.hidden());
        }
        if self.drop {
            attention = attention.dropout(&dropout());
        }
        rekindle::seed(7);
        attention.forward(query, key, value).unwrap()
    }

    /// With every score held.
    fn whole(&self, [query, key, value]: [Tensor<4>; 3]) -> Tensor<4> {
        let dtype = query.dtype();
        let scores_shape = [BATCH, self.heads, self.queries, self.keys];
        let spread = |x: Tensor<4>| {
            let [batch, groups, rows, depth] = x.dims();
            let shared = self.heads / groups;
            let x = x.reshape([batch, groups, 1, rows * depth]).repeat_dim(2, shared);
            x.reshape([batch, self.heads, rows, depth])
        };
        let mut hidden = Tensor::<4, Bool>::from_data(
            TensorData::new(vec![false; scores_shape.iter().product()], scores_shape),
            &device(),
        );
        if self.causal {
            let row =
                Tensor::<1, Int>::arange(0..self.queries as i64, &device()).reshape([1, 1, self.queries, 1]);
            let column =
                Tensor::<1, Int>::arange(0..self.keys as i64, &device()).reshape([1, 1, 1, self.keys]);
            let last = row + (self.keys as i64 - self.queries as i64);
            let after = column.expand(scores_shape).greater(last.expand(scores_shape));
            hidden = hidden.bool_or(after);
        }
        if self.hide {
            hidden = hidden.bool_or(self.hidden().reshape([BATCH, 1, 1, self.keys]).expand(scores_shape));
        }
        let scores = query.matmul(spread(key).transpose()).div_scalar((self.depth as f64).sqrt());
        let weights = softmax(scores.mask_fill(hidden.clone(), -1e30), 3).mask_fill(hidden, 0.0);
        let weights = match self.drop {
            true => {
                rekindle::seed(7);
                weights * dropout().forward(Tensor::<4>::ones(scores_shape, &device())).cast(dtype)
            }
            false => weights,
        };
        weights.matmul(spread(value))
    }

    /// The output, and the gradients of queries, keys and values.
    fn run(&self, dtype: DType, attend: impl Fn([Tensor<4>; 3]) -> Tensor<4>) -> Vec<TensorData> {
        let inputs = self.inputs(dtype).map(|input| input.detach().require_grad());
        let output = attend(inputs.clone());
        let shape = output.shape();
        let weights = Tensor::<1, Int>::arange(0..shape.num_elements() as i64, &device());
        let weights = weights.float().sin().cast(dtype).reshape(shape);
        let gradients = (output.clone() * weights).sum().backward();
        let of_inputs = inputs.iter().map(|input| input.grad(&gradients).unwrap().into_data());
        [output.into_data()].into_iter().chain(of_inputs).collect()
    }

    fn agrees(&self) {
        for dtype in [DType::F32, DType::F64] {
            let (found, expected) =
                (self.run(dtype, |inputs| self.ours(inputs)), self.run(dtype, |inputs| self.whole(inputs)));
            for (what, (found, expected)) in
                ["output", "queries", "keys", "values"].iter().zip(found.iter().zip(&expected))
            {
                assert_eq!(found.shape(), expected.shape(), "{what} of {self:?}");
                match dtype {
                    DType::F64 => found.assert_approx_eq::<f64>(expected, Tolerance::absolute(1e-6)),
                    _ => found.assert_approx_eq::<f32>(expected, Tolerance::absolute(2e-5)),
                }
            }
        }
    }
}

fn dropout() -> Dropout {
    DropoutConfig::new(0.25).init().unwrap()
}

#[test]
fn it_agrees_with_attention_that_holds_all_scores() {
    let _alone = alone();
    SMALL.agrees();
    for causal in [false, true] {
        Case { causal, queries: 130, keys: 130, value_depth: 3, ..SMALL }.agrees();
        // Several blocks of keys, of which the last is not whole.
        Case { causal, queries: 70, keys: 515, ..SMALL }.agrees();
        Case { causal, queries: 1, keys: 9, ..SMALL }.agrees();
    }
}

#[test]
fn heads_share_keys_and_values() {
    let _alone = alone();
    for groups in [1, 2, 3] {
        Case { heads: 6, groups, queries: 67, keys: 67, causal: true, ..SMALL }.agrees();
    }
}

#[test]
fn hidden_keys_are_not_looked_at_and_nothing_to_look_at_gives_zeros() {
    let _alone = alone();
    Case { hide: true, keys: 300, ..SMALL }.agrees();
    let case = Case { hide: true, causal: true, ..SMALL };
    case.agrees();
    let blind = case.ours(case.inputs(DType::F32)).slice([1..2, 0..2, 0..2]);
    assert!(blind.into_data().iter::<f32>().all(|x| x == 0.0));
    // More queries than keys: the first of them look at nothing.
    Case { causal: true, queries: 8, keys: 5, ..SMALL }.agrees();
}

#[test]
fn dropout_drops_what_it_drops_of_all_scores() {
    let _alone = alone();
    Case { drop: true, ..SMALL }.agrees();
    Case { drop: true, causal: true, queries: 67, keys: 301, ..SMALL }.agrees();
}

#[test]
fn it_is_the_same_on_any_number_of_threads() {
    let _alone = alone();
    let case = Case { drop: true, causal: true, queries: 200, keys: 300, heads: 4, ..SMALL };
    let on = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| case.run(DType::F32, |inputs| case.ours(inputs)))
    };
    let found = on(1);
    assert!(on(2) == found && on(5) == found);
}

#[test]
fn halves_are_widened_and_narrowed_again() {
    let _alone = alone();
    let case = Case { causal: true, queries: 67, keys: 67, ..SMALL };
    for dtype in [DType::BF16, DType::F16] {
        let [query, key, value] = case.inputs(dtype);
        let found = case.ours([query.clone(), key.clone(), value.clone()]);
        assert_eq!(found.dtype(), dtype);
        let wide = case.ours([query, key, value].map(|input| input.cast(DType::F32)));
        found
            .cast(DType::F32)
            .into_data()
            .assert_approx_eq::<f32>(&wide.into_data(), Tolerance::absolute(0.02));
    }
}

/// Two attentions in a row, on nothing but their input.
#[derive(Module, Debug)]
struct Attending {
    dropout: Dropout,
}

fn attend(module: &Attending, x: Tensor<2>) -> Result<Tensor<2>, Error> {
    let [rows, width] = x.dims();
    let by_head = x.reshape([1, rows, 2, width / 2]).swap_dims(1, 2);
    let attention = Attention::new().causal().dropout(&module.dropout);
    let attended = attention.forward(by_head.clone(), by_head.clone().sin(), by_head)?;
    Ok(attended.swap_dims(1, 2).reshape([rows, width]))
}

#[test]
fn every_plan_gives_the_same_bits() {
    let _alone = alone();
    let stages: Vec<Attending> = (0..3).map(|_| Attending { dropout: dropout() }).collect();
    let run = |rule: Rule| {
        rekindle::seed(2);
        let x = random([70, 8], &device()).require_grad();
        let y = Region::new().stages("attend", &stages, attend).rule(rule).forward(x.clone()).unwrap();
        let gradients = y.clone().powf_scalar(2.0).sum().backward();
        (bytes(&y), bytes(&x.grad(&gradients).unwrap()))
    };
    let plain = rekindle::without_checkpointing(|| run(Rule::StoreAll));
    for rule in [Rule::StoreAll, Rule::Full, Rule::EVERY_ONE] {
        assert!(run(rule) == plain, "{rule}");
    }
}

#[test]
fn without_autodiff_it_attends_as_with_it() {
    let _alone = alone();
    let case = Case { causal: true, hide: true, heads: 4, ..SMALL };
    let inputs = case.inputs(DType::F32);
    let plain = inputs.clone().map(|input| input.without_autodiff());
    let attention = Attention::new().causal().hide_keys(case.hidden().without_autodiff());
    let [query, key, value] = plain;
    let found = attention.forward(query, key, value).unwrap();
    found.into_data().assert_approx_eq::<f32>(&case.ours(inputs).into_data(), Tolerance::absolute(1e-5));
}

#[test]
fn what_does_not_go_together_is_refused() {
    let _alone = alone();
    let make = |shape: [usize; 4]| Tensor::<4>::zeros(shape, &device());
    let refused =
        |query, key, value| Attention::new().forward(make(query), make(key), make(value)).unwrap_err();
    let error = refused([1, 4, 3, 2], [1, 3, 3, 2], [1, 3, 3, 2]);
    assert!(matches!(error, Error::AttentionHeads { heads: 4, groups: 3 }), "{error}");
    let error = refused([1, 4, 3, 2], [1, 4, 3, 5], [1, 4, 3, 2]);
    assert!(matches!(error, Error::AttentionShape { what: "keys", .. }), "{error}");
    let error = refused([1, 4, 3, 2], [1, 4, 3, 2], [1, 4, 2, 2]);
    assert!(matches!(error, Error::AttentionShape { what: "values", .. }), "{error}");
    let mask = Tensor::<2, Bool>::from_data([[false, false]], &device());
    let x = || make([1, 4, 3, 2]);
    let error = Attention::new().hide_keys(mask).forward(x(), x(), x()).unwrap_err();
    assert!(matches!(error, Error::AttentionShape { .. }) && error.to_string().contains("[1, 2]"), "{error}");
    let error = Attention::new().forward(x(), x().cast(DType::F64), x()).unwrap_err();
    assert!(matches!(error, Error::AttentionType { .. }), "{error}");
}
