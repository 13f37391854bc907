//! Images from files: a folder for each class.

mod error;
mod pairs;
mod sizes;

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use burn::tensor::{Device, Int, Tensor, TensorData};
use image::imageops::{self, FilterType};
use image::{DynamicImage, ImageDecoder, ImageError, ImageReader, Limits, RgbImage};
use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::Source;
use crate::ImageBatch;

pub use error::FolderError;
pub use pairs::PairFolder;
use sizes::Gathered;

/// The longest side that images are made to.
const LONGEST: usize = 8_192;

/// Images in memory, a byte for each channel of a pixel, and the class of each.
///
/// A class is a sub-folder, an image a `png`, `jpg` or `jpeg` file in it. Classes are numbered in the order of their names. An
/// image has three channels: grey ones get all three alike, and what is transparent is taken as it is. Pixels are from -1
/// to 1 in what is drawn.
///
/// Other files, folders inside of classes, and whatever has a name that begins with a dot are passed over, and listed in
/// [`skipped`](Self::skipped).
///
/// ```no_run
/// use rekindle_models::data::{FolderReader, ImageFolder, OnBroken};
///
/// let flowers = ImageFolder::read("flowers")?;
/// let smaller = FolderReader::new().resize(64).on_broken(OnBroken::Skip).read("flowers")?;
/// let (training, held_out) = smaller.split(0.1)?;
/// # let _ = (flowers, training, held_out);
/// # Ok::<(), rekindle_models::data::FolderError>(())
/// ```
#[derive(Clone, Debug)]
pub struct ImageFolder {
    /// What was read: parts of a folder share it.
    held: Arc<Held>,
    /// Which images are this part's.
    members: Vec<usize>,
}

#[derive(Debug)]
struct Held {
    names: Vec<String>,
    width: usize,
    height: usize,
    images: Vec<Image>,
    skipped: Vec<Skipped>,
}

struct Image {
    class: usize,
    /// The name of the file.
    name: String,
    /// Row by row, the channels of a pixel side by side.
    pixels: Vec<u8>,
}

impl std::fmt::Debug for Image {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} of class {}", self.name, self.class)
    }
}

/// What was passed over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    /// The file or folder.
    pub path: PathBuf,
    /// Why.
    pub reason: String,
}

/// What to do with a file that is called an image and is none, and with an image of another size than the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnBroken {
    /// Refuse the folder, and name the file; of sizes, two that differ.
    #[default]
    Refuse,
    /// Do without it, and list it. The size of the images is the one that most have.
    Skip,
}

/// How a folder is read.
#[derive(Clone, Copy, Debug, Default)]
pub struct FolderReader {
    resize: Option<usize>,
    on_broken: OnBroken,
}

impl FolderReader {
    /// Images of one size, none of them broken.
    pub fn new() -> Self {
        Self::default()
    }

    /// Makes every image so many pixels wide and high. What is not a square is stretched.
    #[must_use]
    pub fn resize(mut self, side: usize) -> Self {
        self.resize = Some(side);
        self
    }

    /// What to do with a broken file.
    #[must_use]
    pub fn on_broken(mut self, on_broken: OnBroken) -> Self {
        self.on_broken = on_broken;
        self
    }

    /// Reads all images of a folder.
    ///
    /// # Errors
    /// When the folder cannot be read, has fewer than two classes or a class without images, a file is broken and not to be
    /// skipped, or sizes differ and are not to be made the same.
    pub fn read(self, path: impl AsRef<Path>) -> Result<ImageFolder, FolderError> {
        let path = path.as_ref();
        self.check()?;
        let mut skipped = Vec::new();
        let entries_here = entries(path, &mut skipped)?.into_iter();
        let (classes, files): (Vec<_>, Vec<_>) = entries_here.partition(|entry| entry.is_dir());
        match classes.as_slice() {
            [] => return Err(FolderError::NoClass { path: path.to_owned(), files: files.len() }),
            [class] => return Err(FolderError::OneClass { path: path.to_owned(), class: name_of(class) }),
            _ => {}
        }
        let of_no_class = |path| Skipped { path, reason: "it is in no class".to_owned() };
        skipped.extend(files.into_iter().map(of_no_class));
        let mut found = Gathered::new(self.on_broken);
        for (class, folder) in classes.iter().enumerate() {
            for file in entries(folder, &mut skipped)? {
                let Some(read) = self.file(&file, &mut skipped)? else { continue };
                let size = [read.width() as usize, read.height() as usize];
                found.add(&file, size, Image { class, name: name_of(&file), pixels: read.into_raw() })?;
            }
        }
        let (images, [width, height]) = found.of_one_size(&mut skipped);
        let images: Vec<Image> = images.into_iter().map(|(_, image)| image).collect();
        for (class, folder) in classes.iter().enumerate() {
            if !images.iter().any(|image| image.class == class) {
                let others = skipped.iter().filter(|skipped| skipped.path.parent() == Some(folder)).count();
                return Err(FolderError::EmptyClass { path: folder.clone(), others });
            }
        }
        let names = classes.iter().map(|class| name_of(class)).collect();
        let members = (0..images.len()).collect();
        Ok(ImageFolder { held: Arc::new(Held { names, width, height, images, skipped }), members })
    }

    /// Refuses a size that no image is made to.
    fn check(self) -> Result<(), FolderError> {
        match self.resize.filter(|side| !(1..=LONGEST).contains(side)) {
            Some(found) => Err(FolderError::Resize { found, most: LONGEST }),
            None => Ok(()),
        }
    }

    /// One image, or none if the file is to be passed over.
    fn file(self, file: &Path, skipped: &mut Vec<Skipped>) -> Result<Option<RgbImage>, FolderError> {
        let ending = file.extension().map(|ending| ending.to_string_lossy().to_lowercase());
        let called_image = matches!(ending.as_deref(), Some("png" | "jpg" | "jpeg"));
        let mut skip = |reason: String| {
            skipped.push(Skipped { path: file.to_owned(), reason });
            Ok(None)
        };
        if !called_image || file.is_dir() {
            return skip("it is no png or jpeg file".to_owned());
        }
        match (decode(file), self.on_broken) {
            (Ok(image), _) => Ok(Some(self.resized(image))),
            (Err(error), OnBroken::Skip) => skip(error.to_string()),
            (Err(error), OnBroken::Refuse) => {
                Err(FolderError::Broken { path: file.to_owned(), reason: error.to_string() })
            }
        }
    }

    fn resized(self, image: RgbImage) -> RgbImage {
        match self.resize.map(|side| side as u32) {
            Some(side) if image.dimensions() != (side, side) => {
                imageops::resize(&image, side, side, FilterType::Triangle)
            }
            _ => image,
        }
    }
}

/// What is in a folder, by name. What is hidden is passed over: tools leave folders of their own everywhere.
fn entries(folder: &Path, skipped: &mut Vec<Skipped>) -> Result<Vec<PathBuf>, FolderError> {
    let unreadable = |source| FolderError::Unreadable { path: folder.to_owned(), source };
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        match name_of(&path).starts_with('.') {
            true => skipped.push(Skipped { path, reason: "its name begins with a dot".to_owned() }),
            false => found.push(path),
        }
    }
    found.sort_unstable();
    Ok(found)
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// Decodes a file by what is in it, whatever its name says, and turns it as the camera was held.
fn decode(file: &Path) -> Result<RgbImage, ImageError> {
    let mut decoder = ImageReader::open(file)?.with_guessed_format()?.into_decoder()?;
    // A few bytes can claim to be an image of any size.
    Limits::default().reserve(decoder.total_bytes())?;
    let orientation = decoder.orientation()?;
    let mut image = DynamicImage::from_decoder(decoder)?;
    image.apply_orientation(orientation);
    Ok(image.into_rgb8())
}

impl ImageFolder {
    /// Reads a folder of images of one size, none of them broken.
    ///
    /// # Errors
    /// As [`FolderReader::read`].
    pub fn read(path: impl AsRef<Path>) -> Result<Self, FolderError> {
        FolderReader::new().read(path)
    }

    /// The name of each class.
    pub fn names(&self) -> &[String] {
        &self.held.names
    }

    /// How many images there are.
    pub fn examples(&self) -> usize {
        self.members.len()
    }

    /// The channels, height and width of an image.
    pub fn image(&self) -> [usize; 3] {
        [3, self.held.height, self.held.width]
    }

    /// What was passed over.
    pub fn skipped(&self) -> &[Skipped] {
        &self.held.skipped
    }

    /// A part to learn from, and one to hold out, with images of every class in both.
    ///
    /// Which image goes where depends on the names of its class and its file alone: it stays there on every machine.
    ///
    /// # Errors
    /// When the part is not between 0 and 1, or a class has a single image.
    pub fn split(&self, held_out: f64) -> Result<(Self, Self), FolderError> {
        if !(held_out > 0.0 && held_out < 1.0) {
            return Err(FolderError::HeldOut { found: held_out });
        }
        let (mut training, mut held) = (Vec::new(), Vec::new());
        for (class, name) in self.held.names.iter().enumerate() {
            let of_class =
                self.members.iter().copied().filter(|index| self.held.images[*index].class == class);
            let mut of_class: Vec<usize> = of_class.collect();
            let found = of_class.len();
            if found < 2 {
                return Err(FolderError::TooFew { class: name.clone(), found });
            }
            of_class.sort_by_cached_key(|index| {
                let file = &self.held.images[*index].name;
                (xxh3_64(format!("{name}/{file}").as_bytes()), file.clone())
            });
            let out = ((found as f64 * held_out).round() as usize).clamp(1, found - 1);
            held.extend_from_slice(&of_class[..out]);
            training.extend_from_slice(&of_class[out..]);
        }
        let part = |mut members: Vec<usize>| {
            members.sort_unstable();
            Self { held: self.held.clone(), members }
        };
        Ok((part(training), part(held)))
    }

    /// A number over all names and pixels, by which a run that goes on can tell that these are other images.
    pub fn checksum(&self) -> String {
        let mut hash = Xxh3::new();
        // Lengths first, so that no two lists of names run together to the same bytes.
        let mut add = |bytes: &[u8]| {
            hash.update(&(bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        for number in self.image().into_iter().chain([self.held.names.len(), self.members.len()]) {
            add(&(number as u64).to_le_bytes());
        }
        self.held.names.iter().for_each(|name| add(name.as_bytes()));
        for image in self.members.iter().map(|index| &self.held.images[*index]) {
            add(&(image.class as u64).to_le_bytes());
            add(image.name.as_bytes());
            add(&image.pixels);
        }
        format!("xxh3-128:{:032x}", hash.digest128())
    }

    /// Images in their order, as many of the range as there are: to ask about each once.
    pub fn batch(&self, examples: Range<usize>, device: &Device) -> ImageBatch {
        let end = examples.end.min(self.members.len());
        self.gather(&self.members[examples.start.min(end)..end], device)
    }

    fn gather(&self, members: &[usize], device: &Device) -> ImageBatch {
        let [channels, height, width] = self.image();
        let count = members.len();
        let images: Vec<&Image> = members.iter().map(|index| &self.held.images[*index]).collect();
        let mut pixels = Vec::with_capacity(count * channels * height * width);
        for image in &images {
            for channel in 0..channels {
                let of_channel = image.pixels.iter().skip(channel).step_by(channels);
                pixels.extend(of_channel.map(|pixel| f32::from(*pixel) / 127.5 - 1.0));
            }
        }
        let classes: Vec<i64> = images.iter().map(|image| image.class as i64).collect();
        ImageBatch {
            images: Tensor::from_data(TensorData::new(pixels, [count, channels, height, width]), device),
            classes: Tensor::<1, Int>::from_data(TensorData::new(classes, [count]), device),
        }
    }
}

impl Source for ImageFolder {
    type Batch = ImageBatch;

    fn draw(&self, examples: usize, random: &mut fastrand::Rng, device: &Device) -> ImageBatch {
        let draw = |_| self.members[random.usize(..self.members.len())];
        let members: Vec<usize> = (0..examples).map(draw).collect();
        self.gather(&members, device)
    }
}
