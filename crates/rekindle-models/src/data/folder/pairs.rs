//! Images that each have a text beside them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::{Device, Int, Tensor, TensorData};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::{FolderError, FolderReader, Gathered, Held, Image, ImageFolder, Skipped, entries, name_of};
use crate::PairBatch;
use crate::data::Source;

/// Images in memory, and a text for each: beside `cat.png` stands `cat.txt`.
///
/// The bytes of a text are its tokens, and what is left of its places is filled with one token more.
///
/// ```no_run
/// use rekindle_models::data::{FolderReader, PairFolder};
///
/// let pairs: PairFolder = FolderReader::new().resize(32).read_pairs("photos", 64)?;
/// let (training, held_out) = pairs.split(0.1)?;
/// # let _ = (training, held_out);
/// # Ok::<(), rekindle_models::data::FolderError>(())
/// ```
#[derive(Clone, Debug)]
pub struct PairFolder {
    /// All images are of one class.
    images: ImageFolder,
    texts: Arc<Vec<Vec<u8>>>,
    /// The places of a text.
    tokens: usize,
}

/// Stands where a text has ended.
const END: i64 = 256;

impl FolderReader {
    /// Reads all images of a folder that have a text beside them, of at most so many bytes.
    ///
    /// # Errors
    /// When the folder cannot be read or has fewer than two pairs, an image is broken and not to be skipped, sizes differ and
    /// are not to be made the same, or a text is missing, empty or too long.
    pub fn read_pairs(self, path: impl AsRef<Path>, tokens: usize) -> Result<PairFolder, FolderError> {
        let path = path.as_ref();
        self.check()?;
        let (mut skipped, mut texts) = (Vec::new(), Vec::new());
        let mut found = Gathered::new(self.on_broken);
        // Texts are looked for by their images.
        let is_text = |file: &PathBuf| file.extension().is_some_and(|ending| ending == "txt");
        let (without, files): (Vec<_>, Vec<_>) = entries(path, &mut skipped)?.into_iter().partition(is_text);
        let mut without = BTreeSet::from_iter(without);
        for file in files {
            let beside = file.with_extension("txt");
            without.remove(&beside);
            let Some(read) = self.file(&file, &mut skipped)? else { continue };
            texts.push(text(&beside, tokens)?);
            let size = [read.width() as usize, read.height() as usize];
            found.add(&file, size, Image { class: 0, name: name_of(&file), pixels: read.into_raw() })?;
        }
        let lonely = |path| Skipped { path, reason: "no image of its name stands beside it".to_owned() };
        skipped.extend(without.into_iter().map(lonely));
        let (images, [width, height]) = found.of_one_size(&mut skipped);
        let (places, images): (Vec<usize>, Vec<Image>) = images.into_iter().unzip();
        let texts: Vec<_> = places.into_iter().map(|place| std::mem::take(&mut texts[place])).collect();
        if images.len() < 2 {
            return Err(FolderError::FewPairs { path: path.to_owned(), found: images.len() });
        }
        let members = (0..images.len()).collect();
        let held = Held { names: vec!["pairs".to_owned()], width, height, images, skipped };
        Ok(PairFolder {
            images: ImageFolder { held: Arc::new(held), members },
            texts: Arc::new(texts),
            tokens,
        })
    }
}

fn text(path: &Path, tokens: usize) -> Result<Vec<u8>, FolderError> {
    let bytes =
        std::fs::read(path).map_err(|source| FolderError::NoText { path: path.to_owned(), source })?;
    if bytes.contains(&0) {
        return Err(FolderError::BinaryText { path: path.to_owned() });
    }
    let trimmed = bytes.trim_ascii().to_vec();
    match trimmed.len() {
        found if found == 0 || found > tokens => {
            Err(FolderError::TextLength { path: path.to_owned(), found, most: tokens })
        }
        _ => Ok(trimmed),
    }
}

impl PairFolder {
    /// How many different tokens there are: the bytes, and what stands behind the end.
    pub const VOCABULARY: usize = END as usize + 1;

    /// How many pairs there are.
    pub fn examples(&self) -> usize {
        self.images.examples()
    }

    /// The channels, height and width of an image.
    pub fn image(&self) -> [usize; 3] {
        self.images.image()
    }

    /// What was passed over.
    pub fn skipped(&self) -> &[Skipped] {
        self.images.skipped()
    }

    /// A part to learn from, and one to hold out. Which pair goes where depends on the name of its file alone.
    ///
    /// # Errors
    /// When the part is not between 0 and 1.
    pub fn split(&self, held_out: f64) -> Result<(Self, Self), FolderError> {
        let (training, held) = self.images.split(held_out)?;
        let of = |images| Self { images, texts: Arc::clone(&self.texts), tokens: self.tokens };
        Ok((of(training), of(held)))
    }

    /// A number over all names, pixels and texts.
    pub fn checksum(&self) -> String {
        let mut hash = Xxh3::new();
        hash.update(self.images.checksum().as_bytes());
        hash.update(&(self.tokens as u64).to_le_bytes());
        for index in &self.images.members {
            hash.update(&xxh3_64(&self.texts[*index]).to_le_bytes());
        }
        format!("xxh3-128:{:032x}", hash.digest128())
    }
}

impl Source for PairFolder {
    type Batch = PairBatch;

    /// No pair twice, as long as there are that many: the texts of a batch are to be told apart.
    fn draw(&self, examples: usize, random: &mut fastrand::Rng, device: &Device) -> PairBatch {
        let mut members = Vec::with_capacity(examples + self.examples());
        while members.len() < examples {
            let mut all = self.images.members.clone();
            random.shuffle(&mut all);
            members.append(&mut all);
        }
        members.truncate(examples);
        let mut tokens = Vec::with_capacity(examples * self.tokens);
        for index in &members {
            let text = &self.texts[*index];
            tokens.extend(text.iter().map(|byte| i64::from(*byte)));
            tokens.extend(std::iter::repeat_n(END, self.tokens - text.len()));
        }
        let texts = TensorData::new(tokens, [examples, self.tokens]);
        let images = self.images.gather(&members, device).images;
        PairBatch::new(images, Tensor::<2, Int>::from_data(texts, device))
    }
}
