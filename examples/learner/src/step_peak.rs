//! The peak memory of a step, as a metric.

use std::sync::Arc;

use burn::tensor::TensorReadError;
use burn_train::metric::{
    Metric, MetricAttributes, MetricMetadata, MetricName, Numeric, NumericAttributes, NumericEntry,
    SerializedEntry,
};
use rekindle::Bytes;

/// The most bytes a step takes above those before it. Of an epoch it is the highest, not the mean: that is what has
/// to fit.
#[derive(Clone, Debug, Default)]
pub struct StepPeak {
    last: Bytes,
    highest: Bytes,
}

impl StepPeak {
    /// What people call it.
    pub const NAME: &'static str = "Step peak";
}

impl Metric for StepPeak {
    type Input = Option<Bytes>;

    fn name(&self) -> MetricName {
        Arc::new(Self::NAME.to_owned())
    }

    fn attributes(&self) -> MetricAttributes {
        NumericAttributes { unit: Some("bytes".to_owned()), higher_is_better: false }.into()
    }

    fn update(
        &mut self,
        peak: &Option<Bytes>,
        _: &MetricMetadata,
    ) -> Result<SerializedEntry, TensorReadError> {
        let Some(peak) = *peak else {
            return Ok(SerializedEntry::not_available(Some("bytes")));
        };
        self.last = peak;
        self.highest = self.highest.max(peak);
        Ok(SerializedEntry::new(peak.to_string(), NumericEntry::Value(number(peak)).serialize()))
    }

    fn compute(&mut self) -> Result<SerializedEntry, TensorReadError> {
        Ok(SerializedEntry::new(self.highest.to_string(), self.final_value().serialize()))
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

impl Numeric for StepPeak {
    fn value(&self) -> Option<NumericEntry> {
        Some(NumericEntry::Value(number(self.last)))
    }

    fn running_value(&self) -> Option<NumericEntry> {
        Some(NumericEntry::Value(number(self.highest)))
    }

    fn final_value(&self) -> NumericEntry {
        NumericEntry::Final(number(self.highest))
    }
}

fn number(bytes: Bytes) -> f64 {
    bytes.get() as f64
}
