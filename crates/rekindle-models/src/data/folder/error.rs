//! Folders there is nothing to learn from.

use std::io;
use std::path::PathBuf;

/// Why a folder of images was refused.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FolderError {
    /// The folder, or that of a class, cannot be listed.
    #[error("{} cannot be read as a folder of images: {source}; expected one sub-folder for each class", path.display())]
    Unreadable {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// Nothing is in the folder that could be a class.
    #[error(
        "{} has no class: found {files} files and no sub-folder, expected one sub-folder of images for each of at least 2 classes",
        path.display()
    )]
    NoClass {
        /// The folder.
        path: PathBuf,
        /// The files that lie in it directly.
        files: usize,
    },
    /// There is nothing to tell apart.
    #[error("{} has one class only (`{class}`), expected a sub-folder of images for each of at least 2", path.display())]
    OneClass {
        /// The folder.
        path: PathBuf,
        /// The class.
        class: String,
    },
    /// A class shows nothing.
    #[error("{} has no images: found {others} other files, expected at least one png or jpeg file that can be read", path.display())]
    EmptyClass {
        /// The folder of the class.
        path: PathBuf,
        /// What it has instead, files that were skipped included.
        others: usize,
    },
    /// A file is no image.
    #[error("{} cannot be read as an image: {reason}; mend or remove it, or ask for broken files to be skipped", path.display())]
    Broken {
        /// The file.
        path: PathBuf,
        /// What the decoder or the system said.
        reason: String,
    },
    /// Images have different sizes.
    #[error(
        "{} has {} by {} pixels, but {} has {} by {}; expected images of one size, or a side to resize them all to",
        second.display(), second_size[0], second_size[1], first.display(), first_size[0], first_size[1]
    )]
    Sizes {
        /// The first image.
        first: PathBuf,
        /// Its width and height.
        first_size: [usize; 2],
        /// The first that differs from it.
        second: PathBuf,
        /// Its width and height.
        second_size: [usize; 2],
    },
    /// Images cannot be made so large, or so small.
    #[error("images are to have {found} pixels along a side, expected 1 to {most}")]
    Resize {
        /// The side asked for.
        found: usize,
        /// The longest there is.
        most: usize,
    },
    /// A part that leaves nothing to learn from, or nothing to ask about.
    #[error("a part of {found} is to be held out, expected more than 0 and less than 1; 0.1 is usual")]
    HeldOut {
        /// The part found.
        found: f64,
    },
    /// A class cannot be in both parts.
    #[error("class `{class}` has {found} image, expected at least 2: one to learn from and one to hold out")]
    TooFew {
        /// The class.
        class: String,
        /// How many images it has.
        found: usize,
    },
    /// What is called a text has a byte of zeros in it.
    #[error("{} is not text: a byte of it is zero", path.display())]
    BinaryText {
        /// The file.
        path: PathBuf,
    },
    /// There is nothing to tell a pair from.
    #[error("{} has {found} images with a text beside them, expected at least 2: `cat.png` and `cat.txt`", path.display())]
    FewPairs {
        /// The folder.
        path: PathBuf,
        /// The pairs in it.
        found: usize,
    },
    /// An image has no text beside it.
    #[error("{} cannot be read: {source}; expected a text beside every image", path.display())]
    NoText {
        /// Where the text should be.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A text is empty, or longer than a model reads.
    #[error("{} has {found} bytes of text, expected 1 to {most}", path.display())]
    TextLength {
        /// The text.
        path: PathBuf,
        /// Its bytes.
        found: usize,
        /// The most there may be.
        most: usize,
    },
}
