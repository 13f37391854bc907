//! What a region keeps between its forward and its backward pass, and why.

use std::cell::RefCell;
use std::fmt;

use rekindle_plan::Bytes;

thread_local! {
    static LISTING: RefCell<Option<Vec<KeptRow>>> = const { RefCell::new(None) };
}

/// What all regions kept that ran inside [`what_is_kept`]. Prints as a table.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeptList {
    rows: Vec<KeptRow>,
}

/// One thing that is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct KeptRow {
    /// The stage it is for.
    pub stage: String,
    /// Which boundary or tape it is.
    pub what: String,
    /// Element type and shape; `None` for a tape, which is many tensors.
    pub tensor: Option<String>,
    /// Its size; `None` for a tape that could not be traced.
    pub bytes: Option<Bytes>,
    /// What a tape is made of, in the order in which the stage makes it.
    pub tape: Vec<TapeTensor>,
    /// What it is kept for.
    pub why: String,
}

/// A tensor of a tape.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TapeTensor {
    /// Element type and shape.
    pub tensor: String,
    /// Its size.
    pub bytes: Bytes,
    /// The operation that wrote it, as Burn calls it.
    pub made_by: String,
    /// It is what the stage returns, and the input of the next.
    pub is_output: bool,
}

impl TapeTensor {
    fn why(&self) -> String {
        match self.is_output {
            true => format!("made by {}, the stage's output", self.made_by),
            false => format!("made by {}", self.made_by),
        }
    }
}

/// What a tape is made of, while somebody lists it. The stage's function is called for it, on tensors without values.
#[cfg(feature = "capture")]
pub(crate) fn tape_of(
    stage: &dyn crate::stage::AnyStage,
    input: &crate::boundary::Parts,
    keeping: crate::node::Keeping,
) -> Option<Vec<TapeTensor>> {
    // Not while it is borrowed: the stage may have regions of its own.
    LISTING
        .with_borrow(Option::is_some)
        .then(|| without_listing(|| crate::traced::tape_of(stage, input, keeping)))?
}

#[cfg(not(feature = "capture"))]
pub(crate) fn tape_of(
    _: &dyn crate::stage::AnyStage,
    _: &crate::boundary::Parts,
    _: crate::node::Keeping,
) -> Option<Vec<TapeTensor>> {
    None
}

impl KeptRow {
    /// The tape of a stage, by its number from 1, and what it is made of, if that is known.
    pub(crate) fn tape(stage: &str, number: usize, tape: Option<Vec<TapeTensor>>) -> Self {
        Self {
            stage: stage.to_owned(),
            what: format!("tape {number}"),
            tensor: None,
            bytes: tape.as_ref().map(|tape| tape.iter().map(|tensor| tensor.bytes).sum()),
            tape: tape.unwrap_or_default(),
            why: "the backward pass reads it; the stage is not run again".to_owned(),
        }
    }
}

impl KeptList {
    /// What is kept, in the order the regions ran.
    pub fn rows(&self) -> &[KeptRow] {
        &self.rows
    }

    /// The size of all boundaries in the list.
    pub fn boundary_bytes(&self) -> Bytes {
        self.rows.iter().filter(|row| row.tensor.is_some()).filter_map(|row| row.bytes).sum()
    }

    /// The size of all tapes in the list that could be traced.
    pub fn tape_bytes(&self) -> Bytes {
        self.rows.iter().filter(|row| row.tensor.is_none()).filter_map(|row| row.bytes).sum()
    }
}

impl fmt::Display for KeptList {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = ["stage", "kept", "tensor", "bytes", "why"].map(str::to_owned);
        let cells = self.rows.iter().flat_map(|row| {
            let whole = [
                row.stage.clone(),
                row.what.clone(),
                row.tensor.clone().unwrap_or_else(|| "-".to_owned()),
                row.bytes.map_or_else(|| "-".to_owned(), |bytes| bytes.get().to_string()),
                row.why.clone(),
            ];
            let each = row.tape.iter().map(|tensor| {
                [
                    String::new(),
                    String::new(),
                    tensor.tensor.clone(),
                    tensor.bytes.get().to_string(),
                    tensor.why(),
                ]
            });
            std::iter::once(whole).chain(each)
        });
        let cells: Vec<[String; 5]> = std::iter::once(header).chain(cells).collect();
        let width = |column: usize| cells.iter().map(|row| row[column].len()).max().unwrap_or(0);
        let widths: [usize; 4] = std::array::from_fn(width);
        for [stage, what, tensor, bytes, why] in &cells {
            let [a, b, c, d] = widths;
            writeln!(formatter, "{stage:a$}  {what:b$}  {tensor:c$}  {bytes:>d$}  {why}")?;
        }
        write!(formatter, "boundaries in all: {}", self.boundary_bytes())?;
        match self.tape_bytes() {
            Bytes::ZERO => Ok(()),
            bytes => write!(formatter, ", tapes: {bytes}"),
        }
    }
}

/// Runs a forward pass and lists what its regions keep for the backward pass: each boundary, and of each tape the tensors that it
/// is made of.
///
/// A tape is traced, as [`trace`](crate::trace) does it: its stage's function is called twice more, on tensors without values.
/// Of a stage that asks for values, or in a build without the feature `capture`, the list says only that its tape is kept.
///
/// ```
/// use burn::nn::{Linear, LinearConfig};
/// use burn::tensor::{Device, Tensor};
/// use rekindle::{checkpoint, what_is_kept};
///
/// let device = Device::flex().autodiff();
/// let layer = LinearConfig::new(8, 32).init(&device);
/// let x = Tensor::<2>::ones([4, 8], &device);
/// let (y, kept) = what_is_kept(|| checkpoint(&layer, x, |layer: &Linear, x: Tensor<2>| layer.forward(x)));
/// assert_eq!(y?.dims(), [4, 32]);
/// assert_eq!(kept.rows().len(), 1);
/// assert_eq!(kept.boundary_bytes().get(), 4 * 8 * 4);
/// println!("{kept}");
/// # Ok::<(), rekindle::Error>(())
/// ```
pub fn what_is_kept<T>(forward: impl FnOnce() -> T) -> (T, KeptList) {
    let _restore = Restore(LISTING.replace(Some(Vec::new())));
    let output = forward();
    let rows = LISTING.take().unwrap_or_default();
    (output, KeptList { rows })
}

/// Puts back what an outer listing had, also when the forward pass panics.
struct Restore(Option<Vec<KeptRow>>);

impl Drop for Restore {
    fn drop(&mut self) {
        LISTING.set(self.0.take());
    }
}

/// Runs something that does not belong to the listing.
#[cfg(feature = "capture")]
fn without_listing<T>(run: impl FnOnce() -> T) -> T {
    let _restore = Restore(LISTING.take());
    run()
}

/// Adds to the listing, if there is one.
pub(crate) fn note(rows: impl FnOnce() -> Vec<KeptRow>) {
    LISTING.with_borrow_mut(|listing| {
        if let Some(listing) = listing {
            listing.extend(rows());
        }
    });
}
