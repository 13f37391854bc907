//! Weights of any module, under the names of its fields.

use std::collections::HashMap;
use std::path::Path;

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::tensor::{Tensor, TensorData};

use super::WeightsError;
use super::file::{self, File, Tensors};

/// Writes a module's weights and running statistics, named as its fields are, such as `blocks.3.norm.gamma`. A file that is
/// there is replaced when the new one is whole.
///
/// # Errors
/// When the file cannot be written.
pub fn save_module<M: Module>(path: &Path, module: &M) -> Result<(), WeightsError> {
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    file::write(path, &collected(module), metadata)
}

/// A module with the weights of a file that [`save_module`] wrote.
///
/// # Errors
/// When the file cannot be read, or is of another module: nothing is taken from such a file.
pub fn load_module<M: Module>(path: &Path, module: M) -> Result<M, WeightsError> {
    let bytes = file::read(path)?;
    let file = File::open(path, &bytes)?;
    let expected = collected(&module);
    let found = file.tensors.names();
    file.has_exactly(expected.keys().map(String::as_str), found.into_iter())?;
    let mut elements = HashMap::with_capacity(expected.len());
    for (name, (shape, _)) in &expected {
        elements.insert(name.clone(), file.elements(name, shape)?);
    }
    Ok(module.map(&mut Fill { at: Vec::new(), elements }))
}

/// Where a walk through a module is.
fn name(at: &[String]) -> String {
    at.join(".")
}

fn collected<M: Module>(module: &M) -> Tensors {
    #[derive(Default)]
    struct Collect {
        at: Vec<String>,
        tensors: Tensors,
    }
    impl ModuleVisitor for Collect {
        fn enter_module(&mut self, name: &str, _: &str) {
            self.at.push(name.to_owned());
        }

        fn exit_module(&mut self, _: &str, _: &str) {
            self.at.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let data = param.val().to_data();
            let bytes = data.iter::<f32>().flat_map(f32::to_le_bytes).collect();
            self.tensors.insert(name(&self.at), (data.shape().as_slice().to_vec(), bytes));
        }
    }
    let mut collect = Collect::default();
    // Burn brings the last update of running statistics into their values when autodiff is taken off; before, they are a step behind.
    module.valid().visit(&mut collect);
    collect.tensors
}

struct Fill {
    at: Vec<String>,
    elements: HashMap<String, Vec<f32>>,
}

impl ModuleMapper for Fill {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.at.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.at.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        // Every name was found before.
        let Some(elements) = self.elements.remove(&name(&self.at)) else { return param };
        param.map(|old| {
            let data = TensorData::new(elements, old.shape());
            Tensor::from_data(data, &old.device()).set_require_grad(old.is_require_grad())
        })
    }
}
