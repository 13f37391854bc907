//! What is asked of an estimate: a model, how it is trained, and on how many ranks.

use rekindle_plan::Bytes;

use crate::{
    Architecture, AttentionKind, EstimateError, Fit, Keeping, Parallel, Rank, Row, Setting, State,
    Transformer, count, fit, thumb,
};

/// A model and how it is trained.
///
/// ```
/// use rekindle_estimate::Asked;
///
/// let asked = Asked::preset("gpt2").unwrap();
/// let rows = asked.rows()?;
/// assert_eq!(rows[0].strategy, "none");
/// assert!(rows.iter().all(|row| row.activations_bytes <= rows[0].activations_bytes));
/// # Ok::<(), rekindle_estimate::EstimateError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// What the model is called.
    pub name: String,
    /// The model.
    pub architecture: Architecture,
    /// A step of it.
    pub setting: Setting,
    /// Over which ranks it is spread.
    pub parallel: Parallel,
    /// Recompute from every so many layers on, as one of the strategies; `None` for about the root of the layers.
    pub every: Option<u64>,
}

/// Numbers that replace those of a preset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// Layers.
    pub layers: Option<u64>,
    /// Width of the residual stream.
    pub width: Option<u64>,
    /// Attention heads.
    pub heads: Option<u64>,
    /// Heads of keys and values; as many as heads where those change and these do not.
    pub key_value_heads: Option<u64>,
    /// Width inside of the perceptron; four times the width where that changes and this does not.
    pub hidden: Option<u64>,
    /// Words of the vocabulary.
    pub vocabulary: Option<u64>,
}

impl Asked {
    /// A model by its name, as it is usually trained; `None` when there is none of that name.
    pub fn preset(name: &str) -> Option<Self> {
        let architecture = crate::preset(name)?;
        Some(Self {
            name: name.to_owned(),
            setting: Setting::of(&architecture),
            architecture,
            parallel: Parallel::default(),
            every: None,
        })
    }

    /// The same model with some of its numbers changed.
    ///
    /// # Errors
    /// When it is none that has such numbers.
    pub fn with(mut self, changes: &Changes) -> Result<Self, EstimateError> {
        let Changes { layers, width, heads, key_value_heads, hidden, vocabulary } = *changes;
        self.architecture = match self.architecture {
            Architecture::Transformer(model) => {
                let own_heads = heads.unwrap_or(model.key_value_heads);
                let own_hidden = width.map_or(model.hidden, |width| width.saturating_mul(4));
                Architecture::Transformer(Transformer {
                    layers: layers.unwrap_or(model.layers),
                    width: width.unwrap_or(model.width),
                    heads: heads.unwrap_or(model.heads),
                    key_value_heads: key_value_heads.unwrap_or(own_heads),
                    hidden: hidden.unwrap_or(own_hidden),
                    vocabulary: vocabulary.unwrap_or(model.vocabulary),
                    ..model
                })
            }
            other if *changes == Changes::default() => other,
            _ => return Err(EstimateError::NothingToChange { model: self.name }),
        };
        Ok(self)
    }

    /// Refuses what cannot be counted: ranks that a model is not counted over, more of them than layers, more tokens than
    /// positions.
    ///
    /// # Errors
    /// With the first of these.
    pub fn check(&self) -> Result<(), EstimateError> {
        let spread = self.setting.tensor_parallel > 1 || self.parallel.pipeline > 1;
        match &self.architecture {
            Architecture::ResNet(_) if spread || self.setting.keeping == Keeping::Nodes => {
                return Err(EstimateError::OneRankOnly { model: self.name.clone() });
            }
            _ => {}
        }
        let (pipeline, layers) = (self.parallel.pipeline, self.architecture.layers());
        if pipeline > layers.max(1) {
            return Err(EstimateError::MoreRanksThanLayers { pipeline, layers });
        }
        match &self.architecture {
            Architecture::Transformer(Transformer { patch: 0, positions, .. })
                if *positions > 0 && self.setting.length > *positions =>
            {
                let (length, positions) = (self.setting.length, *positions);
                Err(EstimateError::MoreTokensThanPositions { model: self.name.clone(), length, positions })
            }
            _ => Ok(()),
        }
    }

    /// What training holds whatever the batch is.
    pub fn state(&self) -> State {
        State::of(&self.architecture, &self.setting, &self.parallel)
    }

    /// What every strategy takes.
    ///
    /// # Errors
    /// When the numbers do not go together, or do not fit into 64 bits.
    pub fn rows(&self) -> Result<Vec<Row>, EstimateError> {
        count::rows(self, &self.setting)
    }

    /// What every strategy takes on each rank of a pipeline. The embedding is on the first, and the head on the last.
    /// [`rows`](Self::rows) are those of a rank with the layers of the first and both of these: none takes more.
    ///
    /// # Errors
    /// As [`rows`](Self::rows).
    pub fn ranks(&self) -> Result<Vec<Rank>, EstimateError> {
        count::ranks(self)
    }

    /// What fits into `room` under a strategy.
    ///
    /// # Errors
    /// When the numbers do not go together.
    pub fn fit(&self, strategy: &str, room: Bytes) -> Result<Fit, EstimateError> {
        fit::fit(self, strategy, room)
    }

    /// What people say of such a model, and what is counted.
    ///
    /// # Errors
    /// As [`rows`](Self::rows).
    pub fn rules_of_thumb(&self) -> Result<Vec<String>, EstimateError> {
        thumb::rules(self)
    }

    /// How attention runs, in words.
    pub fn attention(&self) -> &'static str {
        match (self.setting.attention, self.setting.keeping) {
            (AttentionKind::Stored, Keeping::Framework) => "attention that keeps every pair of positions",
            _ => "attention in linear memory",
        }
    }

    /// Whose tapes are counted, in words.
    pub fn keeping(&self) -> &'static str {
        match self.setting.keeping {
            Keeping::Framework => "tapes of an ordinary framework",
            Keeping::Nodes => "tapes of rekindle's nodes",
        }
    }
}
