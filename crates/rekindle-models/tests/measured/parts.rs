//! The memory of a contrastive batch in parts.

use burn::optim::GradientsParams;
use rekindle::Rule;
use rekindle_models::data::{Captions, Source};
use rekindle_models::{Batch, PairBatch, TwoTower, TwoTowerConfig};

use crate::common::{alone, device};
use crate::step::peak_of;

const CHUNK: usize = 16;

fn model() -> TwoTower {
    let pixels = Captions::default().pixels();
    let config = TwoTowerConfig::new(pixels, 4, Captions::VOCABULARY, Captions::TOKENS, 32, 2, 2);
    device().seed(3);
    config.with_embedding(16).init(&device()).unwrap()
}

fn pairs(count: usize) -> PairBatch {
    Captions::default().draw(count, &mut fastrand::Rng::with_seed(11), &device())
}

#[test]
fn many_parts_take_the_memory_of_one() {
    alone(|| {
        let model = model();
        let (batch, one) = (pairs(32 * CHUNK), pairs(CHUNK));
        let in_parts = |batch: &PairBatch, rule: Rule| {
            let (gradients, peak) = peak_of(&model, || Ok(model.step(batch, CHUNK, rule)?.gradients));
            assert!(gradients.iter().all(|gradient| !gradient.is_empty()));
            peak.get()
        };
        // Threads that work for the first time allocate scratch memory, whatever the plan.
        in_parts(&batch.slice(0..8 * CHUNK), Rule::EVERY_ONE);
        for rule in [Rule::EVERY_ONE, Rule::StoreAll] {
            let (of_one, of_all) = (in_parts(&one, rule), in_parts(&batch, rule));
            assert!(of_all <= 2 * of_one, "{rule}: {of_all} for 32 parts, {of_one} for one");
            if rule == Rule::StoreAll {
                // At once it takes many times as much, so there is something to save.
                let (_, at_once) = peak_of(&model, || {
                    let loss = model.loss(&batch, rule)?;
                    Ok(GradientsParams::from_grads(rekindle::backward(&loss)?, &model))
                });
                assert!(at_once.get() > 8 * of_all, "{at_once} at once, {of_all} in parts");
            }
        }
    });
}
