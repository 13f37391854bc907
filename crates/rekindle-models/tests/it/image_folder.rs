//! Folders of images: what is read, what is refused, and which image goes where.

use std::collections::BTreeSet;
use std::fs;
use std::io::Cursor;
use std::path::{Path, PathBuf};

use burn::tensor::{Device, TensorData};
use image::{GrayImage, ImageFormat, Luma, Rgb, RgbImage, Rgba, RgbaImage};
use rekindle_models::data::{FolderError, FolderReader, ImageFolder, OnBroken, Source};
use rekindle_models::{Batch, ImageBatch};
use tempfile::TempDir;

fn picture(width: u32, height: u32, seed: u32) -> RgbImage {
    RgbImage::from_fn(width, height, |x, y| {
        Rgb([(x * 16 + seed) as u8, (y * 16 + seed) as u8, (x * y + 3 * seed) as u8])
    })
}

/// Writes images into a folder, whose parents it makes.
fn write(folder: &Path, name: &str, image: &RgbImage) -> PathBuf {
    let path = folder.join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    image.save(&path).unwrap();
    path
}

/// Two classes of four images each.
fn two_classes() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (class, name) in ["cats", "dogs"].iter().enumerate() {
        for index in 0..4 {
            let seed = 40 * class as u32 + 7 * index;
            write(folder.path(), &format!("{name}/{index}.png"), &picture(6, 4, seed));
        }
    }
    folder
}

fn values(data: TensorData) -> Vec<f32> {
    data.try_into_vec_as::<f32>().unwrap()
}

fn classes(batch: &ImageBatch) -> Vec<i64> {
    batch.classes.to_data().try_into_vec_as::<i64>().unwrap()
}

#[test]
fn every_pixel_and_every_class_is_where_it_belongs() {
    let folder = two_classes();
    let found = ImageFolder::read(folder.path()).unwrap();
    assert_eq!(found.names(), ["cats", "dogs"]);
    assert_eq!((found.examples(), found.image()), (8, [3, 4, 6]));
    let batch = found.batch(0..100, &Device::flex());
    assert_eq!(batch.images.dims(), [8, 3, 4, 6]);
    assert_eq!(classes(&batch), [0, 0, 0, 0, 1, 1, 1, 1]);
    let second = picture(6, 4, 40 + 7);
    let pixels = values(batch.images.slice_dim(0, 5..6).into_data());
    for (channel, plane) in pixels.chunks(4 * 6).enumerate() {
        for (at, value) in plane.iter().enumerate() {
            let expected = second.get_pixel(at as u32 % 6, at as u32 / 6)[channel];
            assert_eq!(*value, f32::from(expected) / 127.5 - 1.0, "channel {channel}, pixel {at}");
        }
    }
    assert_eq!(found.batch(7..9, &Device::flex()).examples(), 1);
}

#[test]
fn the_same_random_numbers_draw_the_same_images() {
    let folder = two_classes();
    let found = ImageFolder::read(folder.path()).unwrap();
    let draw = |seed| {
        let batch = found.draw(40, &mut fastrand::Rng::with_seed(seed), &Device::flex());
        assert_eq!(batch.images.dims(), [40, 3, 4, 6]);
        (classes(&batch), values(batch.images.into_data()))
    };
    assert!(draw(1) == draw(1));
    assert!(draw(1) != draw(2));
    assert_eq!(BTreeSet::from_iter(draw(1).0), BTreeSet::from([0, 1]));
}

#[test]
fn jpeg_grey_and_transparent_images_are_read() {
    let folder = tempfile::tempdir().unwrap();
    // A jpeg rounds: one colour all over comes back within a few of 255 steps.
    write(folder.path(), "a/plain.JPG", &RgbImage::from_pixel(8, 8, Rgb([200, 100, 50])));
    write(folder.path(), "a/plain.jpeg", &RgbImage::from_pixel(8, 8, Rgb([200, 100, 50])));
    let b = folder.path().join("b");
    fs::create_dir(&b).unwrap();
    GrayImage::from_pixel(8, 8, Luma([51])).save(b.join("0.png")).unwrap();
    RgbaImage::from_pixel(8, 8, Rgba([255, 0, 51, 7])).save(b.join("1.png")).unwrap();
    // Content counts, not the name.
    fs::copy(folder.path().join("a/plain.jpeg"), b.join("2.png")).unwrap();
    let found = ImageFolder::read(folder.path()).unwrap();
    let batch = found.batch(0..9, &Device::flex());
    assert_eq!(classes(&batch), [0, 0, 1, 1, 1]);
    let expected = [[200, 100, 50], [200, 100, 50], [51, 51, 51], [255, 0, 51], [200, 100, 50]];
    for (index, colour) in expected.into_iter().enumerate() {
        let pixels = values(batch.slice(index..index + 1).images.into_data());
        for (channel, plane) in pixels.chunks(64).enumerate() {
            let expected = colour[channel] as f32 / 127.5 - 1.0;
            assert!(plane.iter().all(|value| (value - expected).abs() < 0.03), "{index}: {plane:?}");
        }
    }
}

/// A jpeg that says the camera was turned: an Exif block of one entry, the orientation.
fn turned(image: &RgbImage, orientation: u8) -> Vec<u8> {
    let mut plain = Cursor::new(Vec::new());
    image.write_to(&mut plain, ImageFormat::Jpeg).unwrap();
    let plain = plain.into_inner();
    let mut exif = b"Exif\0\0MM\0\x2a\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01".to_vec();
    exif.extend([0, orientation, 0, 0, 0, 0, 0, 0]);
    let mut bytes = plain[..2].to_vec();
    bytes.extend([0xff, 0xe1, 0, exif.len() as u8 + 2]);
    bytes.extend(exif);
    bytes.extend(&plain[2..]);
    bytes
}

#[test]
fn images_are_turned_as_the_camera_was_held() {
    let folder = tempfile::tempdir().unwrap();
    let upright = write(folder.path(), "a/0.png", &RgbImage::new(8, 16));
    // Black above white lying on its side: dark to the left.
    let lying = RgbImage::from_fn(16, 8, |x, _| if x < 8 { Rgb([0; 3]) } else { Rgb([255; 3]) });
    fs::create_dir(folder.path().join("b")).unwrap();
    fs::write(folder.path().join("b/0.jpg"), turned(&lying, 6)).unwrap();
    let found = ImageFolder::read(folder.path()).unwrap();
    assert_eq!(found.image(), [3, 16, 8], "as {}", upright.display());
    let pixels = values(found.batch(1..2, &Device::flex()).images.into_data());
    assert!(pixels[..64].iter().all(|value| *value < -0.9), "dark above");
    assert!(pixels[64..128].iter().all(|value| *value > 0.9), "light below");
}

#[test]
fn sizes_that_differ_are_named_and_can_be_made_one() {
    let folder = two_classes();
    let other = write(folder.path(), "dogs/2.png", &picture(5, 4, 3));
    write(folder.path(), "dogs/3.png", &picture(9, 9, 3));
    let error = ImageFolder::read(folder.path()).unwrap_err();
    let FolderError::Sizes { first, first_size, second, second_size } = &error else { panic!("{error}") };
    assert_eq!((first, first_size), (&folder.path().join("cats/0.png"), &[6, 4]));
    assert_eq!((second, second_size), (&other, &[5, 4]));
    assert!(error.to_string().contains("has 5 by 4 pixels, but"), "{error}");
    let resized = FolderReader::new().resize(8).read(folder.path()).unwrap();
    assert_eq!((resized.image(), resized.examples()), ([3, 8, 8], 8));
    let one = |colour: u8| RgbImage::from_pixel(31, 17, Rgb([colour, 0, 255]));
    let plain = tempfile::tempdir().unwrap();
    write(plain.path(), "a/0.png", &one(51));
    write(plain.path(), "b/0.png", &one(102));
    let resized = FolderReader::new().resize(4).read(plain.path()).unwrap();
    let pixels = values(resized.batch(0..1, &Device::flex()).images.into_data());
    assert!(pixels[..16].iter().all(|value| (value + 0.6).abs() < 1e-6), "{pixels:?}");
    for found in [0, 8_193, usize::MAX] {
        let error = FolderReader::new().resize(found).read(plain.path()).unwrap_err();
        assert!(matches!(&error, FolderError::Resize { most: 8_192, .. }), "{error}");
    }
}

#[test]
fn images_of_another_size_than_most_are_left_out_as_asked() {
    let folder = two_classes();
    // The first image that is met is one of those that differ.
    let other = write(folder.path(), "cats/0.png", &picture(4, 6, 3));
    let large = write(folder.path(), "dogs/3.png", &picture(9, 9, 3));
    let skip = FolderReader::new().on_broken(OnBroken::Skip);
    let found = skip.read(folder.path()).unwrap();
    assert_eq!((found.image(), found.examples()), ([3, 4, 6], 6));
    assert_eq!(classes(&found.batch(0..6, &Device::flex())), [0, 0, 0, 1, 1, 1]);
    let left_out: Vec<_> = found.skipped().iter().map(|skipped| skipped.path.clone()).collect();
    assert_eq!(left_out, [other, large]);
    assert_eq!(found.skipped()[0].reason, "it has 4 by 6 pixels, where most have 6 by 4");
    // A class of which nothing is left is none.
    for index in 0..4 {
        write(folder.path(), &format!("dogs/{index}.png"), &picture(9, 9, index));
    }
    write(folder.path(), "cats/0.png", &picture(6, 4, 0));
    write(folder.path(), "cats/9.png", &picture(6, 4, 0));
    let error = skip.read(folder.path()).unwrap_err();
    let FolderError::EmptyClass { path, others: 4 } = &error else { panic!("{error}") };
    assert_eq!(*path, folder.path().join("dogs"));
}

#[test]
fn pairs_are_images_with_a_text() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for index in 0..4 {
        write(folder.path(), &format!("{index}.png"), &picture(6, 4, index));
        fs::write(path(&format!("{index}.txt")), format!("  number {index}\n")).unwrap();
    }
    let read = |tokens| FolderReader::new().read_pairs(folder.path(), tokens);
    let pairs = read(8).unwrap();
    assert_eq!((pairs.examples(), pairs.image(), pairs.skipped().len()), (4, [3, 4, 6], 0));
    let batch = pairs.draw(4, &mut fastrand::Rng::with_seed(1), &Device::flex());
    let texts = batch.texts.to_data().try_into_vec_as::<i64>().unwrap();
    let texts = BTreeSet::from_iter(texts.chunks(8).map(<[i64]>::to_vec));
    let expected =
        |index: u8| b"number ".iter().chain(&[b'0' + index]).map(|byte| i64::from(*byte)).collect();
    assert_eq!(texts, (0..4).map(expected).collect::<BTreeSet<Vec<i64>>>(), "each once");

    fs::write(path("alone.txt"), "of no image").unwrap();
    let found = read(8).unwrap();
    assert_eq!(found.examples(), 4);
    assert_eq!(found.skipped().len(), 1);
    assert_eq!(found.skipped()[0].path, path("alone.txt"));
    assert_eq!(found.skipped()[0].reason, "no image of its name stands beside it");
    fs::remove_file(path("alone.txt")).unwrap();

    let other = write(folder.path(), "0.png", &picture(5, 4, 0));
    assert!(matches!(read(8).unwrap_err(), FolderError::Sizes { first, .. } if first == other));
    let skipping = FolderReader::new().on_broken(OnBroken::Skip).read_pairs(folder.path(), 8).unwrap();
    assert_eq!((skipping.examples(), skipping.skipped().len()), (3, 1));
    let batch = skipping.draw(3, &mut fastrand::Rng::with_seed(1), &Device::flex());
    let texts = batch.texts.to_data().try_into_vec_as::<i64>().unwrap();
    let texts = BTreeSet::from_iter(texts.chunks(8).map(<[i64]>::to_vec));
    assert_eq!(texts, (1..4).map(expected).collect::<BTreeSet<Vec<i64>>>(), "texts stay with their images");
    write(folder.path(), "0.png", &picture(6, 4, 0));

    let refused = |content: &[u8], tokens| {
        fs::write(path("2.txt"), content).unwrap();
        read(tokens).unwrap_err()
    };
    let binary = refused(b"a\0b", 8);
    assert!(
        matches!(&binary, FolderError::BinaryText { path: found } if *found == path("2.txt")),
        "{binary}"
    );
    assert!(matches!(refused(b" \n", 8), FolderError::TextLength { found: 0, most: 8, .. }));
    assert!(matches!(refused(b"nine byte", 8), FolderError::TextLength { found: 9, most: 8, .. }));
    fs::remove_file(path("2.txt")).unwrap();
    assert!(
        matches!(read(8).unwrap_err(), FolderError::NoText { path: found, .. } if found == path("2.txt"))
    );
    let error = FolderReader::new().read_pairs(tempfile::tempdir().unwrap().path(), 8).unwrap_err();
    assert!(matches!(error, FolderError::FewPairs { found: 0, .. }), "{error}");
}

#[test]
fn a_broken_file_is_named_or_skipped_and_listed() {
    let folder = two_classes();
    let whole = fs::read(folder.path().join("cats/0.png")).unwrap();
    let mut damaged = whole.clone();
    let middle = damaged.len() / 2;
    damaged[middle..].iter_mut().for_each(|byte| *byte ^= 0x55);
    // A head that claims more pixels than there is memory for.
    let mut huge = whole.clone();
    huge[16..24].copy_from_slice(&[0x7f, 0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff]);
    for content in [&[][..], b"no image", &whole[..middle], &damaged, &huge] {
        let broken = folder.path().join("cats/9.png");
        fs::write(&broken, content).unwrap();
        let error = ImageFolder::read(folder.path()).unwrap_err();
        let FolderError::Broken { path, reason } = &error else { panic!("{error}") };
        assert!(*path == broken && !reason.is_empty(), "{error}");
        let found = FolderReader::new().on_broken(OnBroken::Skip).read(folder.path()).unwrap();
        assert_eq!(found.examples(), 8);
        assert_eq!(found.skipped().iter().map(|skipped| &skipped.path).collect::<Vec<_>>(), [&broken]);
    }
}

#[test]
fn what_is_no_image_is_passed_over_and_listed() {
    let folder = two_classes();
    let make = |name: &str| {
        let path = folder.path().join(name);
        fs::write(&path, "text").unwrap();
        path
    };
    fs::create_dir_all(folder.path().join(".hidden")).unwrap();
    fs::create_dir_all(folder.path().join("dogs/puppies.png")).unwrap();
    let expected =
        [make("readme.md"), make("cats/labels.txt"), make("cats/.png"), folder.path().join(".hidden")];
    let expected = BTreeSet::from_iter(expected.into_iter().chain([folder.path().join("dogs/puppies.png")]));
    let found = ImageFolder::read(folder.path()).unwrap();
    assert_eq!((found.examples(), found.names().len()), (8, 2));
    let skipped = found.skipped().iter().map(|skipped| skipped.path.clone());
    assert_eq!(BTreeSet::from_iter(skipped), expected);
}

#[test]
fn folders_without_classes_are_refused_saying_what_was_found() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let refused = || ImageFolder::read(path).unwrap_err();
    assert!(matches!(refused(), FolderError::NoClass { files: 0, .. }));
    write(path, "0.png", &picture(4, 4, 1));
    let error = refused();
    assert!(matches!(error, FolderError::NoClass { files: 1, .. }), "{error}");
    assert!(
        error.to_string().contains("found 1 files and no sub-folder, expected one sub-folder"),
        "{error}"
    );
    write(path, "cats/0.png", &picture(4, 4, 1));
    assert!(matches!(refused(), FolderError::OneClass { class, .. } if class == "cats"));
    fs::create_dir(path.join("dogs")).unwrap();
    fs::write(path.join("dogs/notes.txt"), "none").unwrap();
    let error = refused();
    let FolderError::EmptyClass { path: empty, others: 1 } = &error else { panic!("{error}") };
    assert_eq!(*empty, path.join("dogs"));
    let file = path.join("0.png");
    for unreadable in [path.join("nowhere"), file] {
        let error = ImageFolder::read(&unreadable).unwrap_err();
        assert!(matches!(&error, FolderError::Unreadable { path, .. } if *path == unreadable), "{error}");
    }
}

#[test]
fn parts_have_every_class_and_no_image_twice() {
    let folder = tempfile::tempdir().unwrap();
    for (class, count) in [("a", 20), ("b", 2), ("c", 7)] {
        for index in 0..count {
            write(folder.path(), &format!("{class}/{index}.png"), &picture(4, 4, 9 * index));
        }
    }
    let whole = ImageFolder::read(folder.path()).unwrap();
    let (training, held_out) = whole.split(0.25).unwrap();
    let count = |part: &ImageFolder| {
        let found = classes(&part.batch(0..part.examples(), &Device::flex()));
        [0, 1, 2].map(|class| found.iter().filter(|found| **found == class).count())
    };
    assert_eq!((count(&training), count(&held_out)), ([15, 1, 5], [5, 1, 2]));
    let pixels = |part: &ImageFolder, index: usize| {
        let batch = part.batch(index..index + 1, &Device::flex());
        (classes(&batch), batch.images.into_data().as_bytes().to_vec())
    };
    let all = |part: &ImageFolder| BTreeSet::from_iter((0..part.examples()).map(|index| pixels(part, index)));
    assert!(all(&training).is_disjoint(&all(&held_out)));
    assert!(all(&training).union(&all(&held_out)).count() == 29);
    // A new image moves no other one from one part to the other, as long as as many are held out.
    let before = all(&held_out);
    write(folder.path(), "a/new.png", &picture(4, 4, 255));
    let again = ImageFolder::read(folder.path()).unwrap().split(0.25).unwrap().1;
    assert!(all(&again).symmetric_difference(&before).count() <= 2);
    for part in [0.0, 1.0, -0.5, f64::NAN] {
        assert!(matches!(whole.split(part).unwrap_err(), FolderError::HeldOut { .. }));
    }
    let error = held_out.split(0.5).unwrap_err();
    assert!(matches!(&error, FolderError::TooFew { class, found: 1 } if class == "b"), "{error}");
}

#[test]
fn other_images_have_another_checksum() {
    let folder = two_classes();
    let read = || ImageFolder::read(folder.path()).unwrap();
    let first = read().checksum();
    assert!(first.starts_with("xxh3-128:") && first.len() == 9 + 32, "{first}");
    assert_eq!(read().checksum(), first);
    let (training, held_out) = read().split(0.5).unwrap();
    assert!(training.checksum() != held_out.checksum());
    assert_eq!(FolderReader::new().resize(4).read(folder.path()).unwrap().checksum().len(), first.len());
    assert!(FolderReader::new().resize(4).read(folder.path()).unwrap().checksum() != first);
    let mut seen = BTreeSet::from([first]);
    // One channel of one pixel, another name, another class, one image fewer.
    let mut other = picture(6, 4, 7);
    other.get_pixel_mut(5, 3)[2] ^= 1;
    write(folder.path(), "cats/1.png", &other);
    assert!(seen.insert(read().checksum()));
    fs::rename(folder.path().join("cats/1.png"), folder.path().join("cats/7.png")).unwrap();
    assert!(seen.insert(read().checksum()));
    fs::rename(folder.path().join("dogs"), folder.path().join("wolves")).unwrap();
    assert!(seen.insert(read().checksum()));
    fs::remove_file(folder.path().join("wolves/3.png")).unwrap();
    assert!(seen.insert(read().checksum()));
}
