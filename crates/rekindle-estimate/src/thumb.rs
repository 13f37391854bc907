//! Rules of thumb, beside the count.

use rekindle_plan::Bytes;

use crate::{Architecture, Asked, AttentionKind, EstimateError, Keeping, Precision, Setting, count};

/// What people say of such a model, and what is counted.
pub(crate) fn rules(asked: &Asked) -> Result<Vec<String>, EstimateError> {
    let Architecture::Transformer(model) = &asked.architecture else { return Ok(Vec::new()) };
    let setting = asked.setting;
    let mut rules = Vec::new();
    let kept = |setting: &Setting, strategy: &str| {
        let row = count::one(asked, setting, strategy)?;
        Ok::<_, EstimateError>(row.map(|row| row.activations_bytes).unwrap_or_default())
    };
    let alone = asked.parallel.pipeline == 1 && setting.tensor_parallel == 1;
    let as_counted = setting.keeping == Keeping::Framework
        && setting.attention == AttentionKind::Stored
        && setting.precision != Precision::F32;
    if model.patch == 0 && alone && as_counted {
        let [s, b, h, a, l] =
            [setting.length, setting.batch, model.width, model.heads, model.layers].map(u128::from);
        let formula = (34 * s * b * h + 5 * a * s * s * b).saturating_mul(l).min(u64::MAX.into()) as u64;
        let counted = kept(&setting, "none")?;
        rules.push(format!(
            "rule: s b h (34 + 5 a s / h) a layer (Korthikanti and others 2022): {}; counted: {counted}, {}",
            Bytes::new(formula),
            match (model.gated, setting.dropout) {
                (false, true) => "with the embedding, the last norm and the logits, which the rule leaves out",
                _ => "because the rule is for GELU, dropout and as many keys as queries, which this model has not",
            }
        ));
    }
    if asked.name == "bert-large" && alone {
        let whole = Setting { precision: Precision::F32, ..setting };
        let counted = kept(&whole, "none")?;
        let weights = 4 * asked.architecture.parameters();
        let batches = 8_000_000_000 / counted.get().max(1) * setting.batch;
        rules.push(format!(
            "rule: BERT-Large takes 8 GB of activations against 1.3 GB of weights; counted in f32: {} of weights, and {counted} of activations at a batch of {}. The rule names no batch: at {} tokens, 8 GB are a batch of {batches}",
            Bytes::new(weights),
            setting.batch,
            setting.length,
        ));
    }
    if asked.name == "llama-70b" && alone {
        let linear = Setting { attention: AttentionKind::Linear, batch: 1, length: 4_096, ..setting };
        let stored = Setting { attention: AttentionKind::Stored, ..linear };
        rules.push(format!(
            "rule: 70B at 4,096 tokens takes 120 GB, 15 with selective and 8 with full recomputation; counted for a batch of 1: {}, {} and {} with attention that keeps every pair, {}, {} and {} with attention in linear memory, where selective runs again what is cheapest until 60% is left",
            kept(&stored, "none")?,
            kept(&stored, "selective")?,
            kept(&stored, "full")?,
            kept(&linear, "none")?,
            kept(&linear, "selective")?,
            kept(&linear, "full")?,
        ));
    }
    Ok(rules)
}
