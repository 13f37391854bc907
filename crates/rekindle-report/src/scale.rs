//! From values to pixels, and the round numbers on an axis.

/// Maps values onto a stretch of pixels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    from: f64,
    to: f64,
    start: f64,
    end: f64,
    logarithmic: bool,
}

impl Scale {
    /// Equal distances for equal differences. An empty range is widened, so that every value has a place.
    pub(crate) fn linear(from: f64, to: f64, start: f64, end: f64) -> Self {
        let to = if to > from { to } else { from + 1.0 };
        Self { from, to, start, end, logarithmic: false }
    }

    /// Equal distances for equal ratios, where all values are positive.
    pub(crate) fn logarithmic(from: f64, to: f64, start: f64, end: f64) -> Self {
        Self { logarithmic: from > 0.0, ..Self::linear(from, to, start, end) }
    }

    /// Where a value lies.
    pub(crate) fn at(&self, value: f64) -> f64 {
        let part = match self.logarithmic {
            true => (value.max(self.from) / self.from).ln() / (self.to / self.from).ln(),
            false => (value - self.from) / (self.to - self.from),
        };
        self.start + part * (self.end - self.start)
    }

    /// Round numbers of `unit` within the range, about `wanted` of them.
    pub(crate) fn ticks(&self, unit: f64, wanted: usize) -> Vec<f64> {
        let (from, to) = (self.from / unit, self.to / unit);
        if self.logarithmic {
            // Powers of two, each or every second or third; with what lies between when there are few.
            let (first, last) = (from.log2().ceil() as i32, to.log2().floor() as i32);
            let powers = usize::try_from(last - first).map_or(0, |steps| steps + 1);
            if powers < 3 {
                let between =
                    (first - 1..=last).flat_map(|power| [1.0, 1.5].map(|part| part * 2f64.powi(power)));
                let within = between.filter(|tick| (from..=to).contains(tick));
                return within.map(|tick| tick * unit).collect();
            }
            let stride = powers.div_ceil(wanted.max(1));
            return (first..=last).step_by(stride).map(|power| 2f64.powi(power) * unit).collect();
        }
        let step = round_step((to - from) / wanted.max(1) as f64);
        let first = (from / step).ceil();
        (0..=2 * wanted + 2)
            .map(|index| (first + index as f64) * step)
            .take_while(|tick| *tick <= to + step * 1e-6)
            .map(|tick| tick * unit)
            .collect()
    }
}

/// 1, 2 or 5 times a power of ten, not far below `wanted`.
fn round_step(wanted: f64) -> f64 {
    let power = 10f64.powf(wanted.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    steps.into_iter().find(|step| *step >= wanted * 0.8).unwrap_or(10.0 * power)
}

/// The unit people read a size of up to `most` bytes in.
pub(crate) fn bytes_unit(most: f64) -> (f64, &'static str) {
    let units =
        [(40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")].map(|(power, name)| (2f64.powi(power), name));
    units.into_iter().find(|(size, _)| most >= *size).unwrap_or((1.0, "bytes"))
}

/// The unit people read a time of up to `most` nanoseconds in.
pub(crate) fn time_unit(most: f64) -> (f64, &'static str) {
    let units = [(1e9, "s"), (1e6, "ms"), (1e3, "µs")];
    units.into_iter().find(|(size, _)| most >= *size).unwrap_or((1.0, "ns"))
}

/// A tick's number, in its unit.
pub(crate) fn label(tick: f64, unit: f64) -> String {
    let number = tick / unit;
    let text = if number.abs() >= 10.0 { format!("{number:.1}") } else { format!("{number:.3}") };
    let text = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(scale: Scale, unit: f64) -> Vec<String> {
        scale.ticks(unit, 5).into_iter().map(|tick| label(tick, unit)).collect()
    }

    #[test]
    fn ticks_are_round_and_within_the_range() {
        let scale = Scale::linear(0.0, 52.4 * 1048576.0, 0.0, 100.0);
        assert_eq!(labels(scale, 1048576.0), ["0", "10", "20", "30", "40", "50"]);
        assert_eq!(labels(Scale::linear(0.0, 1.0, 0.0, 1.0), 1.0), ["0", "0.2", "0.4", "0.6", "0.8", "1"]);
        assert_eq!(labels(Scale::linear(118e6, 142e6, 0.0, 1.0), 1e6), ["120", "125", "130", "135", "140"]);
    }

    #[test]
    fn ratios_get_powers_of_two_and_what_lies_between_where_they_are_few() {
        assert_eq!(labels(Scale::logarithmic(0.52, 2.7, 0.0, 1.0), 1.0), ["0.75", "1", "1.5", "2"]);
        let scale = Scale::logarithmic(3.0, 3000.0, 0.0, 100.0);
        assert_eq!(labels(scale, 1.0), ["4", "16", "64", "256", "1024"]);
        assert!((scale.at(3.0)).abs() < 1e-9 && (scale.at(3000.0) - 100.0).abs() < 1e-9);
    }

    #[test]
    fn the_smallest_and_the_largest_ranges_have_a_few_ticks() {
        for (from, to) in [(0.0, 0.0), (5.0, 5.0), (0.0, u64::MAX as f64), (1.8e19, 1.84e19), (0.0, 1e-9)] {
            for make in [Scale::linear, Scale::logarithmic] {
                let scale = make(from, to, 0.0, 100.0);
                let ticks = scale.ticks(1.0, 5);
                assert!(ticks.len() <= 12, "{from} to {to}: {ticks:?}");
                assert!(scale.at(from).is_finite() && scale.at(to).is_finite());
            }
        }
    }
}
