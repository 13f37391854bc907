//! Gradients that are added up over ranks while the backward goes on.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use burn::module::{Module, ParamId};
use burn::optim::GradientsParams;
use burn::tensor::Tensor;
use rekindle::{Bytes, Take};

use crate::data_parallel::DataParallel;
use crate::{Collective, DistError, Pending, Reduction};

/// The sums of a step's gradients, under way: see [`DataParallel::overlap`] and [`Zero::overlap`](crate::Zero::overlap).
///
/// Parameters are taken in the order in which stages go back, which is the same on all ranks whatever their plans, and reduced in
/// buckets. A rank without examples has no backward, and so no order: its buckets are zeros, and it takes the order of the others. Ranks
/// that have handed over in different orders, as where one leaves a parameter unused that another uses, have added up what does not belong
/// together: that is an error on all of them.
pub struct Overlap {
    inside: Rc<RefCell<Inside>>,
}

impl std::fmt::Debug for Overlap {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let started = self.inside.borrow().started.len();
        formatter.debug_struct("Overlap").field("started", &started).finish_non_exhaustive()
    }
}

/// What came of it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Overlapped {
    /// The mean over all ranks' examples, in the order of the model's fields: of the values of `part`.
    pub sum: Vec<f32>,
    /// Which values these are: all of them, or, with [`ZeroStage::Two`](crate::ZeroStage::Two), those of this rank, and zeros behind
    /// the last.
    pub part: Range<usize>,
    /// How many sums were under way before the backward ended.
    pub early: usize,
    /// How long this rank waited for those, in its backward or after it: what was not hidden behind it.
    pub waited: Duration,
    /// How long it waited then for the others, which could only begin in the end: what no region has, and what is left for the last
    /// bucket.
    pub afterwards: Duration,
}

struct Inside {
    ranks: Arc<dyn Collective>,
    reduction: Reduction,
    /// What this rank's gradients count for.
    weight: f32,
    /// How many values a bucket holds.
    most: usize,
    /// Where each parameter lies in the sum, and how many values it has.
    places: HashMap<ParamId, (usize, usize)>,
    /// The places of what went into buckets, in the order in which it did.
    order: Vec<(usize, usize)>,
    /// What the next bucket has so far.
    filling: Vec<f32>,
    /// The buckets that are being added up, or have been.
    started: VecDeque<Pending<Vec<f32>>>,
    /// How many were begun.
    begun: usize,
    /// What this rank keeps of the sums, where that is not all.
    own: Option<Own>,
    /// How many buckets are under way at the most, where it is not.
    at_once: usize,
    /// How long the backward waited for them.
    waited: Duration,
    error: Option<DistError>,
}

/// A rank's part of the sums.
struct Own {
    range: Range<usize>,
    values: Vec<f32>,
    /// How many values have come, of this rank's or not, in the order in which they went into buckets.
    come: Come,
}

/// A place in an order: which of the gradients, and which of its values.
#[derive(Clone, Copy, Default)]
struct Come {
    gradient: usize,
    value: usize,
}

impl Own {
    /// Keeps what is this rank's of the next bucket.
    fn keep(&mut self, mut bucket: &[f32], order: &[(usize, usize)]) -> Result<(), DistError> {
        while !bucket.is_empty() {
            let Some((start, length)) = order.get(self.come.gradient).copied() else {
                return Err(DistError::Length { found: bucket.len(), expected: 0 });
            };
            let (here, rest) = bucket.split_at(bucket.len().min(length - self.come.value));
            let at = start + self.come.value;
            let (from, to) = (self.range.start.max(at), self.range.end.min(at + here.len()));
            if from < to {
                self.values[from - self.range.start..to - self.range.start]
                    .copy_from_slice(&here[from - at..to - at]);
            }
            self.come.value += here.len();
            if self.come.value == length {
                self.come = Come { gradient: self.come.gradient + 1, value: 0 };
            }
            bucket = rest;
        }
        Ok(())
    }
}

impl Inside {
    fn take(&mut self, id: ParamId, gradient: Tensor<1>) {
        let Some(place) = self.places.remove(&id) else {
            // It is handed over in parts, or is none of the model's: what is not known to be complete is not added up.
            self.error.get_or_insert(DistError::HandedOverTwice);
            return;
        };
        let found = format!("{:?}", gradient.dtype());
        let data = gradient.into_data();
        match data.as_slice::<f32>() {
            Ok(values) if values.len() == place.1 => self.fill(place.0, values),
            Ok(values) => {
                let error = DistError::Length { found: values.len(), expected: place.1 };
                self.error.get_or_insert(error);
            }
            Err(_) => {
                self.error.get_or_insert(DistError::Type { parameter: 1, found });
            }
        }
    }

    /// Puts values that lie at `start` into buckets, and has those that are full added up. Buckets are of one size, so that what is
    /// under way takes no more memory with a large parameter than with small ones.
    fn fill(&mut self, start: usize, mut values: &[f32]) {
        self.order.push((start, values.len()));
        while !values.is_empty() {
            self.filling.reserve_exact(self.most - self.filling.len());
            let (own, rest) = values.split_at(values.len().min(self.most - self.filling.len()));
            match self.weight {
                // Whatever it is, it counts for nothing, and is nothing wherever the others put it.
                0.0 => self.filling.extend(own.iter().map(|_| 0.0)),
                weight => self.filling.extend(own.iter().map(|value| value * weight)),
            }
            values = rest;
            if self.filling.len() == self.most {
                self.start();
            }
        }
    }

    /// Has the bucket added up.
    fn start(&mut self) {
        let values = std::mem::take(&mut self.filling);
        if values.is_empty() {
            return;
        }
        // A rank that counts for nothing does not know yet where sums belong.
        if self.weight > 0.0 && self.own.is_some() {
            let began = Instant::now();
            self.keep(self.at_once.saturating_sub(1));
            self.waited += began.elapsed();
        }
        self.started.push_back(self.ranks.start_all_reduce(values, self.reduction));
        self.begun += 1;
    }

    /// Keeps this rank's part of the buckets that are added up, and waits for those that were begun first until no more than so many are
    /// left.
    fn keep(&mut self, left: usize) {
        let Some(own) = &mut self.own else { return };
        while let Some(under_way) = self.started.pop_front() {
            let sum = match under_way.ready() {
                Ok(sum) => sum,
                Err(under_way) if self.started.len() < left => {
                    self.started.push_front(under_way);
                    return;
                }
                Err(under_way) => under_way.wait(),
            };
            let kept = sum.and_then(|sum| own.keep(&sum, &self.order));
            // A rank that fails goes on asking, as the others do.
            if let Err(error) = kept {
                self.error.get_or_insert(error);
            }
        }
    }

    /// What this rank has put into buckets, and in which order, for the others; nothing if it counts for nothing.
    fn own_order(&self) -> Vec<u8> {
        let of_all = self.order.iter().filter(|_| self.weight > 0.0);
        of_all
            .flat_map(|(start, length)| [*start as u64, *length as u64])
            .flat_map(u64::to_le_bytes)
            .collect()
    }
}

/// The order that all ranks have which count for something.
fn agreed(all: &[Vec<u8>]) -> Result<Vec<(usize, usize)>, DistError> {
    let mut ranks = all.iter().enumerate().filter(|(_, order)| !order.is_empty());
    let Some((rank, order)) = ranks.next() else { return Ok(Vec::new()) };
    let places = |order: &[u8]| -> Vec<(usize, usize)> {
        let (words, _) = order.as_chunks::<8>();
        let words: Vec<_> = words.iter().map(|word| u64::from_le_bytes(*word) as usize).collect();
        words.as_chunks::<2>().0.iter().map(|[start, length]| (*start, *length)).collect()
    };
    let first = places(order);
    if let Some((other, found)) = ranks.find(|(_, found)| *found != order) {
        let same = first.iter().zip(places(found)).take_while(|(first, found)| *first == found).count();
        return Err(DistError::OtherOrder { rank, other, number: same + 1 });
    }
    Ok(first)
}

impl Overlap {
    /// Of all values, or of those in `part`, with so many buckets under way at once.
    pub(crate) fn new(
        parallel: &DataParallel<'_>,
        weight: f32,
        bucket: Bytes,
        part: Option<(Range<usize>, usize)>,
    ) -> Self {
        let at_once = part.as_ref().map_or(usize::MAX, |(_, at_once)| *at_once);
        let mut start = 0;
        let places = parallel.layout().parameters().map(|(id, length)| {
            let place = (start, length);
            start += length;
            (id, place)
        });
        let inside = Inside {
            ranks: parallel.ranks().shared(),
            reduction: parallel.how(),
            weight,
            most: usize::try_from(bucket.get() / 4).unwrap_or(usize::MAX).max(1),
            places: places.collect(),
            order: Vec::new(),
            filling: Vec::new(),
            started: VecDeque::new(),
            begun: 0,
            at_once,
            own: part.map(|(range, _)| Own { values: vec![0.0; range.len()], range, come: Come::default() }),
            waited: Duration::ZERO,
            error: None,
        };
        Self { inside: Rc::new(RefCell::new(inside)) }
    }

    /// What takes gradients from a backward: [`rekindle::backward_handing_over`] or
    /// [`Accumulation::add_handing_over`](rekindle::training::Accumulation::add_handing_over).
    pub fn take(&self) -> Take {
        let inside = Rc::clone(&self.inside);
        Box::new(move |id, gradient| inside.borrow_mut().take(id, gradient))
    }

    /// Waits for all sums, after the backward. `gradients` are those that were not handed over.
    ///
    /// # Errors
    /// When a parameter's gradient came in parts, so that what was added up is not all of it, when ranks have handed over gradients in
    /// different orders, or they are not in step.
    pub fn finish(
        self,
        parallel: &DataParallel<'_>,
        model: &impl Module,
        gradients: GradientsParams,
    ) -> Result<Overlapped, DistError> {
        let mut inside = self.inside.borrow_mut();
        let inside = &mut *inside;
        let (early, in_backward) = (inside.begun, inside.waited);
        let mut parameters = parallel.layout().parameters();
        // What is left, and zeros where nothing was reached.
        let handed_out = parallel.layout().hand_out(model, gradients, |values| {
            let place = parameters.next().and_then(|(id, _)| inside.places.remove(&id));
            match place {
                Some((start, _)) => inside.fill(start, values),
                None if values.iter().any(|value| *value != 0.0) => {
                    inside.error.get_or_insert(DistError::HandedOverTwice);
                }
                None => {}
            }
        });
        inside.start();
        // Behind the sums, of which all ranks have as many: that of a rank without examples does not know their order before.
        let orders = inside.ranks.start_all_gather(inside.own_order());
        let mut waited = in_backward;
        let mut afterwards = inside.waited - in_backward;
        let mut buckets = Vec::with_capacity(inside.started.len());
        let first = inside.begun - inside.started.len();
        for (number, under_way) in (first..).zip(std::mem::take(&mut inside.started)) {
            let began = Instant::now();
            buckets.push(under_way.wait()?);
            *(if number < early { &mut waited } else { &mut afterwards }) += began.elapsed();
        }
        let order = agreed(&orders.wait()?)?;
        let (sum, part) = match inside.own.take() {
            Some(mut own) => {
                for bucket in buckets {
                    own.keep(&bucket, &order)?;
                }
                (own.values, own.range)
            }
            None => {
                let mut sum = vec![0.0; parallel.layout().len()];
                put(&mut sum, buckets, order)?;
                let all = 0..sum.len();
                (sum, all)
            }
        };
        handed_out?;
        match inside.error.take() {
            Some(error) => Err(error),
            None => Ok(Overlapped { sum, part, early, waited, afterwards }),
        }
    }
}

/// Puts what was added up where it belongs. Each bucket is let go of as soon as it is empty.
fn put(sum: &mut [f32], buckets: Vec<Vec<f32>>, order: Vec<(usize, usize)>) -> Result<(), DistError> {
    let expected = sum.len();
    let found = buckets.iter().map(Vec::len).sum();
    let mut buckets = buckets.into_iter();
    let (mut bucket, mut from) = (Vec::new(), 0);
    for (mut start, mut length) in order {
        while length > 0 {
            if from == bucket.len() {
                bucket = buckets.next().ok_or(DistError::Length { found, expected })?;
                from = 0;
            }
            let here = length.min(bucket.len() - from);
            let place = sum.get_mut(start..start + here).ok_or(DistError::Length { found, expected })?;
            place.copy_from_slice(&bucket[from..][..here]);
            (start, length, from) = (start + here, length - here, from + here);
        }
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may fail by panicking")]
mod tests {
    use std::sync::mpsc::{self, Sender};

    use burn::nn::{Linear, LinearConfig};
    use burn::tensor::Device;

    use super::*;
    use crate::Alone;

    const SUM: Duration = Duration::from_millis(5);

    /// A vector, and who waits for its sum.
    type Asked = (Vec<f32>, Sender<Result<Vec<f32>, DistError>>);

    /// Sums that take their time, one after the other.
    #[derive(Clone)]
    struct Slow(Sender<Asked>);

    impl Slow {
        fn new() -> Self {
            let (send, todo) = mpsc::channel::<Asked>();
            std::thread::spawn(move || {
                for (values, answer) in todo {
                    std::thread::sleep(SUM);
                    let _ = answer.send(Ok(values));
                }
            });
            Self(send)
        }
    }

    impl Collective for Slow {
        fn rank(&self) -> usize {
            Alone.rank()
        }

        fn size(&self) -> usize {
            Alone.size()
        }

        fn shared(&self) -> Arc<dyn Collective> {
            Arc::new(self.clone())
        }

        fn split(&self, color: usize, key: usize) -> Result<Box<dyn Collective>, DistError> {
            Alone.split(color, key)
        }

        fn broadcast(&self, root: usize, data: Vec<u8>) -> Result<Vec<u8>, DistError> {
            Alone.broadcast(root, data)
        }

        fn start_all_gather(&self, data: Vec<u8>) -> Pending<Vec<Vec<u8>>> {
            Alone.start_all_gather(data)
        }

        fn start_all_reduce(&self, values: Vec<f32>, _: Reduction) -> Pending<Vec<f32>> {
            let (send, answer) = mpsc::channel();
            self.0.send((values, send)).unwrap();
            Pending::new(0, "a slow sum", answer)
        }

        fn start_reduce_scatter(&self, values: Vec<f32>, how: Reduction) -> Pending<Vec<f32>> {
            Alone.start_reduce_scatter(values, how)
        }

        fn start_all_gather_parts(&self, part: Vec<f32>) -> Pending<Vec<f32>> {
            Alone.start_all_gather_parts(part)
        }

        fn exchange(
            &self,
            send: Option<(usize, Vec<u8>)>,
            from: Option<usize>,
        ) -> Result<Option<Vec<u8>>, DistError> {
            Alone.exchange(send, from)
        }

        fn barrier(&self) -> Result<(), DistError> {
            Alone.barrier()
        }

        fn abort(&self, reason: &str) -> ! {
            Alone.abort(reason)
        }
    }

    #[test]
    fn a_rank_keeps_its_part_in_whatever_order_gradients_come() {
        let order = [(7, 4), (0, 5), (11, 0), (5, 2)];
        let come: Vec<f32> =
            order.iter().flat_map(|(start, length)| *start..start + length).map(|at| at as f32).collect();
        for most in 1..13 {
            for range in [0..4, 4..8, 8..12, 3..3, 0..11] {
                let mut own =
                    Own { values: vec![0.0; range.len()], range: range.clone(), come: Come::default() };
                come.chunks(most).for_each(|bucket| own.keep(bucket, &order).unwrap());
                let expected: Vec<f32> =
                    range.clone().map(|at| if at < 11 { at as f32 } else { 0.0 }).collect();
                assert_eq!(own.values, expected, "{most}, {range:?}");
                assert!(own.keep(&[1.0], &order).is_err(), "more than there is a place for");
            }
        }
    }

    /// Where a rank keeps its part alone, sums wait for each other, and nobody for the last ones before the backward ends.
    #[test]
    fn what_the_backward_waits_for_is_not_hidden() {
        let (ranks, device) = (Slow::new(), Device::flex().autodiff());
        let layer = || LinearConfig::new(4, 4).with_bias(false).init(&device);
        let model: Vec<Linear> = (0..4).map(|_| layer()).collect();
        let parallel = DataParallel::new(&ranks, &model).unwrap();
        let overlap = Overlap::new(&parallel, 1.0, Bytes::new(16), Some((16..32, 3)));
        let mut take = overlap.take();
        for (id, values) in parallel.layout().parameters() {
            take(id, Tensor::ones([values], &device));
        }
        assert!(overlap.inside.borrow().started.len() <= 3);
        let done = overlap.finish(&parallel, &model, GradientsParams::new()).unwrap();
        assert_eq!((done.early, done.part, done.sum), (16, 16..32, vec![1.0; 16]));
        assert!(done.waited >= 12 * SUM, "{:?}", done.waited);
    }

    /// What the last sums take cannot be hidden, and is not what others were waited for.
    #[test]
    fn what_is_not_hidden_is_told_apart_from_what_begins_in_the_end() {
        let (ranks, device) = (Slow::new(), Device::flex().autodiff());
        let layer = || LinearConfig::new(4, 4).with_bias(false).init(&device);
        let model: Vec<Linear> = (0..4).map(|_| layer()).collect();
        let parallel = DataParallel::new(&ranks, &model).unwrap();
        // A bucket is a quarter of a layer. The first layer's gradients are there in the end.
        let after_a_backward_of = |backward: Duration| {
            let overlap = parallel.overlap(1).unwrap();
            let mut take = overlap.take();
            for (id, values) in parallel.layout().parameters().skip(1) {
                take(id, Tensor::ones([values], &device));
            }
            std::thread::sleep(backward);
            let done = overlap.finish(&parallel, &model, GradientsParams::new()).unwrap();
            assert_eq!(done.early, 12);
            assert!(done.afterwards >= 3 * SUM, "{:?}", done.afterwards);
            done.waited
        };
        assert!(after_a_backward_of(Duration::ZERO) >= 6 * SUM, "nothing is hidden");
        // Far longer than twelve sums: on a busy machine they take longer, too.
        let hidden = after_a_backward_of(60 * SUM);
        assert!(hidden < 12 * SUM / 5, "at least 80% is hidden, but {hidden:?} are left");
    }
}
