//! A boundary as it travels from rank to rank: its numbers, then its tensors.

use rekindle::Bytes;
use rekindle_run::{PackedTensor, Parcel};

use crate::DistError;

/// The bytes of a parcel.
pub(super) fn write(parcel: &Parcel) -> Vec<u8> {
    let mut message =
        Vec::with_capacity(64 + parcel.tensors.iter().map(|tensor| tensor.bytes.len() + 64).sum::<usize>());
    let number = |message: &mut Vec<u8>, number: u64| message.extend(number.to_le_bytes());
    number(&mut message, parcel.structure.len() as u64);
    parcel.structure.iter().for_each(|value| number(&mut message, *value));
    number(&mut message, parcel.tensors.len() as u64);
    for tensor in &parcel.tensors {
        number(&mut message, tensor.dtype.len() as u64);
        message.extend(tensor.dtype.as_bytes());
        number(&mut message, tensor.shape.len() as u64);
        tensor.shape.iter().for_each(|length| number(&mut message, *length as u64));
        number(&mut message, tensor.bytes.len() as u64);
        message.extend(tensor.bytes.as_slice());
    }
    message
}

/// The parcel of a message that came from a rank.
pub(super) fn read(message: &[u8], from: usize) -> Result<Parcel, DistError> {
    let mut reader = Reader { rest: message };
    let parcel = reader.parcel().filter(|_| reader.rest.is_empty());
    parcel.ok_or_else(|| DistError::Message {
        from,
        found: Bytes::new(message.len() as u64),
        expected: "a boundary".to_owned(),
    })
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn length(&mut self) -> Option<usize> {
        usize::try_from(self.number()?).ok()
    }

    /// As many numbers as the next one says: no more than there are bytes for.
    fn numbers(&mut self) -> Option<Vec<u64>> {
        let count = self.length()?;
        let bytes = self.take(count.checked_mul(8)?)?;
        let (numbers, _) = bytes.as_chunks::<8>();
        Some(numbers.iter().copied().map(u64::from_le_bytes).collect())
    }

    fn tensor(&mut self) -> Option<PackedTensor> {
        let length = self.length()?;
        let dtype = std::str::from_utf8(self.take(length)?).ok()?.to_owned();
        let shape = self.numbers()?.into_iter().map(usize::try_from).collect::<Result<_, _>>().ok()?;
        let length = self.length()?;
        Some(PackedTensor { dtype, shape, bytes: self.take(length)?.to_vec().into() })
    }

    fn parcel(&mut self) -> Option<Parcel> {
        let structure = self.numbers()?;
        let count = self.number()?;
        let tensors = (0..count).map(|_| self.tensor()).collect::<Option<_>>()?;
        Some(Parcel { tensors, structure })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parcel() -> Parcel {
        let tensor = |dtype: &str, shape: &[usize], bytes: &[u8]| PackedTensor {
            dtype: dtype.to_owned(),
            shape: shape.to_vec(),
            bytes: bytes.to_vec().into(),
        };
        Parcel {
            tensors: vec![tensor("u8", &[3], &[1, 2, 3]), tensor("f32", &[0, 2], &[])],
            structure: vec![7, u64::MAX],
        }
    }

    #[test]
    fn what_is_written_is_read() {
        for parcel in [parcel(), Parcel::default()] {
            assert_eq!(read(&write(&parcel), 0).unwrap_or_else(|error| panic!("{error}")), parcel);
        }
    }

    #[test]
    fn a_damaged_message_is_refused() {
        let message = write(&parcel());
        for end in 0..message.len() {
            assert!(read(&message[..end], 3).is_err(), "{end} bytes of {}", message.len());
        }
        for at in 0..message.len() {
            let mut damaged = message.clone();
            damaged[at] = 0xff;
            // Whatever it says, nobody falls for it: no more memory than the message is taken, and nothing panics.
            let _ = read(&damaged, 3);
        }
        assert!(read(&[message.as_slice(), &[0]].concat(), 3).is_err());
    }
}
