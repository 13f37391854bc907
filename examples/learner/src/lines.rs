//! Shows a training as one line for each pass over the data.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use burn_train::logger::{EvaluationProgressLogger, TrainingProgressLogger};
use burn_train::metric::{MetricDefinition, MetricId, NumericEntry};
use burn_train::renderer::{
    EvaluationName, MetricState, MetricsRenderer, MetricsRendererEvaluation, MetricsRendererTraining,
};

/// The values of every metric, step by step: under `("train", "Loss")` the training's losses.
pub type History = Arc<Mutex<HashMap<(&'static str, String), Vec<f64>>>>;

/// A renderer of few words. burn-train's own prints a line for each batch, and its dashboard wants a terminal.
#[derive(Debug, Default)]
pub struct Lines {
    epoch: usize,
    split: String,
    names: HashMap<MetricId, String>,
    finals: Vec<String>,
    history: History,
}

impl Lines {
    /// What was seen so far. The renderer itself is handed to the `Learner`.
    pub fn history(&self) -> History {
        Arc::clone(&self.history)
    }

    fn update(&mut self, split: &'static str, state: MetricState) {
        let MetricState::Numeric(entry, Some(value)) = state else { return };
        let Some(name) = self.names.get(&entry.metric_id) else { return };
        match value {
            NumericEntry::Final(_) => {
                self.finals.push(format!("{name} {}", entry.serialized_entry.formatted));
            }
            value => {
                let mut history = self.history.lock().unwrap_or_else(PoisonError::into_inner);
                history.entry((split, name.clone())).or_default().push(value.current());
            }
        }
    }
}

impl MetricsRendererTraining for Lines {
    fn update_train(&mut self, state: MetricState) {
        self.update("train", state);
    }

    fn update_valid(&mut self, state: MetricState) {
        self.update("valid", state);
    }
}

impl TrainingProgressLogger for Lines {
    fn start(&mut self, _epochs: usize, starting_epoch: usize, _items: Option<usize>, _label: Option<&str>) {
        self.epoch = starting_epoch;
    }

    fn start_split(&mut self, split: &str, _items: usize) {
        self.split = split.to_owned();
    }

    fn end_split(&mut self) {
        println!("epoch {}, {}: {}", self.epoch, self.split, self.finals.join("; "));
        self.finals.clear();
    }

    fn update_epoch(&mut self, epoch: usize) {
        self.epoch = epoch + 1;
    }

    fn update_split(&mut self, _items: usize) {}

    fn end(&mut self) {}

    fn log_event_training(&mut self, _event: String) {}
}

impl MetricsRenderer for Lines {
    fn register_metric(&mut self, definition: MetricDefinition) {
        self.names.insert(definition.metric_id, definition.name.to_string());
    }

    fn manual_close(&mut self) {}
}

// A renderer is one for evaluation as well; this example evaluates nothing.

impl MetricsRendererEvaluation for Lines {
    fn update_test(&mut self, _name: EvaluationName, _state: MetricState) {}
}

impl EvaluationProgressLogger for Lines {
    fn start_global_progress(&mut self, _tests: usize) {}

    fn start_test(&mut self, _name: &str, _items: usize) {}

    fn update_test_progress(&mut self, _items: usize) {}

    fn end_test(&mut self) {}

    fn end_global_progress(&mut self) {}

    fn log_event_evaluation(&mut self, _event: String) {}
}
