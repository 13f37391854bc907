//! Plans by the shape they are for.

/// The last few values by their keys, such as plans by batch size and sequence length. The one that was not used for the
/// longest time goes first.
///
/// It holds a few dozen at most, each worth seconds of planning, and looks through them one by one.
///
/// ```
/// use rekindle_run::governor::{ShapeCache, bucket};
///
/// let mut plans: ShapeCache<(usize, usize), String> = ShapeCache::new(2);
/// for length in [100, 120, 500, 128] {
///     let shape = (8, bucket(length, 128));
///     plans.get_or_try_insert_with(shape, || Ok::<_, std::io::Error>(format!("a plan for {shape:?}")))?;
/// }
/// // 100, 120 and 128 are planned as 128, 500 as 512.
/// assert_eq!((plans.misses(), plans.hits()), (2, 2));
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ShapeCache<K, V> {
    capacity: usize,
    /// The last used first.
    entries: Vec<(K, V)>,
    hits: u64,
    misses: u64,
}

impl<K: PartialEq, V> ShapeCache<K, V> {
    /// A cache of at most `capacity` values; of one when that is 0.
    ///
    /// ```
    /// use rekindle_run::governor::ShapeCache;
    ///
    /// assert!(ShapeCache::<usize, ()>::new(8).is_empty());
    /// ```
    pub fn new(capacity: usize) -> Self {
        Self { capacity: capacity.max(1), entries: Vec::new(), hits: 0, misses: 0 }
    }

    /// The value of `key`, made by `make` when it is not there. What fails is not kept, and costs no other value its
    /// place.
    ///
    /// # Errors
    /// When `make` fails.
    ///
    /// ```
    /// use rekindle_run::governor::ShapeCache;
    ///
    /// let mut plans = ShapeCache::new(4);
    /// assert_eq!(plans.get_or_try_insert_with(64, || Err("no plan fits")), Err("no plan fits"));
    /// assert_eq!(plans.get_or_try_insert_with(64, || Ok::<_, &str>("a plan")), Ok(&mut "a plan"));
    /// assert_eq!(plans.get_or_try_insert_with(64, || Err("not asked")), Ok(&mut "a plan"));
    /// ```
    pub fn get_or_try_insert_with<E>(
        &mut self,
        key: K,
        make: impl FnOnce() -> Result<V, E>,
    ) -> Result<&mut V, E> {
        match self.entries.iter().position(|(known, _)| *known == key) {
            Some(index) => {
                self.hits = self.hits.saturating_add(1);
                self.entries[..=index].rotate_right(1);
            }
            None => {
                self.misses = self.misses.saturating_add(1);
                let value = make()?;
                self.entries.truncate(self.capacity - 1);
                self.entries.insert(0, (key, value));
            }
        }
        Ok(&mut self.entries[0].1)
    }

    /// How many values there are.
    ///
    /// ```
    /// use rekindle_run::governor::ShapeCache;
    ///
    /// assert_eq!(ShapeCache::<usize, ()>::new(8).len(), 0);
    /// ```
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    ///
    /// ```
    /// use rekindle_run::governor::ShapeCache;
    ///
    /// assert!(ShapeCache::<usize, ()>::new(8).is_empty());
    /// ```
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// How often a value was there.
    ///
    /// ```
    /// use rekindle_run::governor::ShapeCache;
    ///
    /// assert_eq!(ShapeCache::<usize, ()>::new(8).hits(), 0);
    /// ```
    pub fn hits(&self) -> u64 {
        self.hits
    }

    /// How often a value had to be made, failures included.
    ///
    /// ```
    /// use rekindle_run::governor::ShapeCache;
    ///
    /// let mut plans = ShapeCache::<usize, ()>::new(8);
    /// assert_eq!(plans.get_or_try_insert_with(1, || Err(())), Err(()));
    /// assert_eq!(plans.misses(), 1);
    /// ```
    pub fn misses(&self) -> u64 {
        self.misses
    }
}

/// `length` rounded up to a multiple of `step`: fewer different shapes, and a plan for the larger one fits the smaller.
/// Whether a model may be fed padded inputs is the caller's to know. A step of 0 rounds nothing.
///
/// ```
/// use rekindle_run::governor::bucket;
///
/// assert_eq!([1, 64, 65, 0].map(|length| bucket(length, 64)), [64, 64, 128, 0]);
/// assert_eq!(bucket(7, 0), 7);
/// // Where there is no larger multiple, it stays what it is.
/// assert_eq!(bucket(usize::MAX, 64), usize::MAX);
/// ```
pub fn bucket(length: usize, step: usize) -> usize {
    length.checked_next_multiple_of(step).unwrap_or(length)
}
