//! Memory that a tensor may begin in.

const WORD: usize = size_of::<u64>();

/// Bytes that lie where elements of up to eight bytes may begin, so that an engine can take the memory over as a tensor's.
///
/// A `Vec<u8>` may lie anywhere: an engine that finds its elements at an odd address, or must free the memory as what it was
/// allocated, has to copy it.
///
/// ```
/// use rekindle_run::{Buffer, Payload};
///
/// let mut buffer = Buffer::zeroed(16);
/// buffer.as_mut().fill(1);
/// let payload = Payload::from(buffer);
/// assert_eq!(payload.as_slice(), [1; 16]);
/// assert_eq!(payload.into_words(), Ok(vec![0x0101_0101_0101_0101; 2])); // the memory itself, not a copy
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Buffer {
    words: Vec<u64>,
    length: usize,
}

impl Buffer {
    /// So many bytes, all of them 0.
    pub fn zeroed(length: usize) -> Self {
        Self { words: vec![0; length.div_ceil(WORD)], length }
    }

    /// As [`Buffer::zeroed`], but filled by `fill`, which is given so many bytes at a time, rounded up to whole words. What is
    /// filled was written with zeros a moment before, and is still in the processor's cache.
    ///
    /// ```
    /// use rekindle_run::Buffer;
    ///
    /// let mut next = 0..;
    /// let buffer = Buffer::filled(20, 8, |part| {
    ///     part.fill(next.next().unwrap_or(9));
    ///     Ok::<(), ()>(())
    /// })?;
    /// assert_eq!(buffer.as_ref(), [0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2]);
    /// # Ok::<(), ()>(())
    /// ```
    ///
    /// # Errors
    /// That of `fill`.
    pub fn filled<E>(
        length: usize,
        at_once: usize,
        mut fill: impl FnMut(&mut [u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let step = at_once.div_ceil(WORD).max(1);
        let mut words = Vec::with_capacity(length.div_ceil(WORD));
        while words.len() * WORD < length {
            let filled = words.len();
            words.resize((filled + step).min(length.div_ceil(WORD)), 0);
            let part: &mut [u8] = bytemuck::cast_slice_mut(&mut words[filled..]);
            let most = part.len().min(length - filled * WORD);
            fill(&mut part[..most])?;
        }
        Ok(Self { words, length })
    }

    /// Its memory, if it is of whole words; otherwise the buffer as it was.
    ///
    /// # Errors
    /// When its length is no multiple of eight.
    pub fn into_words(self) -> Result<Vec<u64>, Self> {
        match self.length.is_multiple_of(WORD) {
            true => Ok(self.words),
            false => Err(self),
        }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &bytemuck::cast_slice(&self.words)[..self.length]
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut bytemuck::cast_slice_mut(&mut self.words)[..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_any_length_and_its_memory_only_of_whole_words() {
        for length in 0..30 {
            let mut buffer = Buffer::zeroed(length);
            buffer.as_mut().fill(7);
            assert_eq!(buffer.as_ref(), vec![7; length]);
            let at = buffer.as_ref().as_ptr();
            match buffer.into_words() {
                Ok(words) => {
                    assert_eq!((words.len() * 8, words.as_ptr().cast()), (length, at));
                }
                Err(buffer) => {
                    assert_ne!(length % 8, 0);
                    assert_eq!(buffer.as_ref(), vec![7; length]);
                }
            }
        }
    }
}
