//! The smallest limit under which everything that is let go can be brought back.

use crate::{Boundary, Bytes, Profile};

/// The most bytes that are needed at once when everything goes that may: the tapes of the stages that `stays` names are
/// made the first time and stay, and everything else is brought back from `x0` or from the last of them.
///
/// With no such stage this is what the rule `full` takes, with every stage what `store-all` takes.
pub(super) fn least_bytes(profile: &Profile, stays: impl Fn(usize) -> bool) -> Bytes {
    let input = profile.input_bytes().get();
    let gradient = |index: usize| {
        let boundary = Boundary::new(u32::try_from(index).unwrap_or(u32::MAX));
        profile.gradient_bytes(boundary).unwrap_or_default().get()
    };
    // The gradient of x0 is all that is left at the end.
    let mut most = gradient(0).max(input);
    // What stays for good: x0, the tapes so far, and the inputs they hold on to.
    let mut staying = input;
    // The bytes of the input of the next stage beyond that.
    let mut read = 0u64;
    // The largest forward since the last stage that stays, beyond that.
    let mut largest_forward = 0u64;
    for (index, stage) in profile.stages().iter().enumerate() {
        let number = index + 1;
        let [output, tape] = [stage.output_bytes, stage.tape_bytes].map(Bytes::get);
        let [forward_extra, taped_extra, backward_extra] =
            [stage.forward_extra_bytes, stage.taped_workspace(), stage.backward_workspace()].map(Bytes::get);
        let mut need = |parts: &[u64]| {
            most = most.max(parts.iter().fold(0, |sum, part| sum.saturating_add(*part)));
        };
        if stays(index) {
            need(&[staying, read, tape, taped_extra]);
            staying = staying.saturating_add(read).saturating_add(tape);
            need(&[staying, gradient(number), backward_extra]);
            (read, largest_forward) = (0, 0);
        } else {
            need(&[staying, largest_forward, gradient(number)]);
            need(&[staying, read, output, forward_extra]);
            need(&[staying, read, tape, gradient(number), taped_extra.max(backward_extra)]);
            largest_forward = largest_forward
                .max([read, output, forward_extra].iter().fold(0, |sum, part| sum.saturating_add(*part)));
            read = output;
        }
        // When the next stage has gone back.
        if number < profile.stages().len() {
            need(&[staying, gradient(number)]);
        }
    }
    Bytes::new(most)
}
