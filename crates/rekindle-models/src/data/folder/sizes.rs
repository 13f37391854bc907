//! Images of one size.

use std::path::{Path, PathBuf};

use super::{FolderError, Image, OnBroken, Skipped};

/// Images as they are found, until it is known what size they have.
pub(super) struct Gathered {
    on_broken: OnBroken,
    images: Vec<(PathBuf, [usize; 2], Image)>,
}

impl Gathered {
    pub(super) fn new(on_broken: OnBroken) -> Self {
        Self { on_broken, images: Vec::new() }
    }

    /// Takes an image, and refuses one of another size than the first, unless it may be left out.
    pub(super) fn add(&mut self, file: &Path, size: [usize; 2], image: Image) -> Result<(), FolderError> {
        match (self.images.first(), self.on_broken) {
            (Some((first, first_size, _)), OnBroken::Refuse) if *first_size != size => {
                return Err(FolderError::Sizes {
                    first: first.clone(),
                    first_size: *first_size,
                    second: file.to_owned(),
                    second_size: size,
                });
            }
            _ => self.images.push((file.to_owned(), size, image)),
        }
        Ok(())
    }

    /// The images of the size that most have, and it; of two that as many have, the one that was met first. Which were taken is told
    /// by their places in the order they came in.
    pub(super) fn of_one_size(self, skipped: &mut Vec<Skipped>) -> (Vec<(usize, Image)>, [usize; 2]) {
        let mut counted: Vec<([usize; 2], usize)> = Vec::new();
        for (_, size, _) in &self.images {
            match counted.iter_mut().find(|(known, _)| known == size) {
                Some((_, count)) => *count += 1,
                None => counted.push((*size, 1)),
            }
        }
        let most = counted.iter().map(|(_, count)| *count).max();
        let size = counted.iter().find(|(_, count)| Some(*count) == most).map(|(size, _)| *size);
        let [width, height] = size.unwrap_or_default();
        let mut kept = Vec::with_capacity(self.images.len());
        for (place, (path, found, image)) in self.images.into_iter().enumerate() {
            match found == [width, height] {
                true => kept.push((place, image)),
                false => {
                    let [wide, high] = found;
                    let reason =
                        format!("it has {wide} by {high} pixels, where most have {width} by {height}");
                    skipped.push(Skipped { path, reason });
                }
            }
        }
        (kept, [width, height])
    }
}
