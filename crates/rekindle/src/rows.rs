//! What kernels compute of a row of elements: without a branch, so that the compiler can do several at once.

/// As many partial results as a wide vector has places: a fixed number, so that bits do not depend on the machine.
pub(crate) const PLACES: usize = 16;

/// The largest element; not a number, if one of them is not.
#[inline(always)]
pub(crate) fn largest(row: &[f32]) -> f32 {
    let (chunks, rest) = row.as_chunks::<PLACES>();
    let mut found = [f32::NEG_INFINITY; PLACES];
    for chunk in chunks {
        for (found, x) in found.iter_mut().zip(chunk) {
            *found = larger(*found, *x);
        }
    }
    rest.iter().fold(halved(found, larger), |a, b| larger(a, *b))
}

#[inline(always)]
pub(crate) fn larger(a: f32, b: f32) -> f32 {
    if a >= b || a.is_nan() { a } else { b }
}

#[inline(always)]
pub(crate) fn sum(row: &[f32]) -> f32 {
    let (chunks, rest) = row.as_chunks::<PLACES>();
    let mut sums = [0.0; PLACES];
    for chunk in chunks {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum += x;
        }
    }
    halved(sums, |a, b| a + b) + rest.iter().sum::<f32>()
}

/// One result of many, the upper half joined to the lower until one is left.
#[inline(always)]
pub(crate) fn halved(mut results: [f32; PLACES], join: impl Fn(f32, f32) -> f32) -> f32 {
    let mut half = PLACES / 2;
    while half > 0 {
        for place in 0..half {
            results[place] = join(results[place], results[place + half]);
        }
        half /= 2;
    }
    results[0]
}

/// A sum of products, in as many partial sums as a vector has places.
#[inline(always)]
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let (a, a_rest) = a.as_chunks::<PLACES>();
    let (b, b_rest) = b.as_chunks::<PLACES>();
    let mut sums = [0.0; PLACES];
    for (a, b) in a.iter().zip(b) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    let rest: f32 = a_rest.iter().zip(b_rest).map(|(a, b)| a * b).sum();
    halved(sums, |a, b| a + b) + rest
}

/// The sum of the squares of distances from a number.
#[inline(always)]
pub(crate) fn distance(row: &[f32], from: f32) -> f32 {
    let (chunks, rest) = row.as_chunks::<PLACES>();
    let mut sums = [0.0; PLACES];
    for chunk in chunks {
        for (sum, x) in sums.iter_mut().zip(chunk) {
            *sum += (x - from) * (x - from);
        }
    }
    halved(sums, |a, b| a + b) + rest.iter().map(|x| (x - from) * (x - from)).sum::<f32>()
}

/// `e^x` for `x` of 0 or less, within 2 units in the last place; 0 below -87, where `f32` loses digits.
///
/// `x` is `n ln 2 + r`; `e^r` is a polynomial, and `2^n` is put together from its bits.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const P: [f32; 7] = [1.0, 1.0, 0.499_999_9, 0.166_664_1, 0.041_668_29, 0.008_375_645, 0.001_383_580_2];
    // Adding and taking away 1.5 * 2^23 leaves the nearest whole number, and its bits in the sum.
    const ROUND: f32 = 12_582_912.0;
    let bounded = if x > -87.0 { x } else { -87.0 };
    let shifted = bounded * std::f32::consts::LOG2_E + ROUND;
    let n = shifted - ROUND;
    // ln 2 in two parts: the first has few enough digits that n times it is exact.
    let r = (bounded - n * 0.693_359_4) - n * -2.121_944_4e-4;
    let power = f32::from_bits((shifted.to_bits() << 23).wrapping_add(127 << 23));
    let made = polynomial(&P, r) * power;
    // Not a number stays what it is.
    if x < -87.0 {
        0.0
    } else if x.is_nan() {
        x
    } else {
        made
    }
}

/// One over `1 + e^-x`.
#[inline(always)]
pub(crate) fn sigmoid(x: f32) -> f32 {
    let small = exp(-x.abs());
    let large = 1.0 / (1.0 + small);
    if x < 0.0 { small * large } else { large }
}

/// The hyperbolic tangent: a polynomial where it is nearly `x`, so that small numbers keep their digits.
#[inline(always)]
pub(crate) fn tanh(x: f32) -> f32 {
    // Cephes' for |x| < 0.625.
    const P: [f32; 5] = [-0.333_332_83, 0.133_314_42, -0.053_739_715, 0.020_639_088, -0.005_704_988_7];
    let square = x * x;
    let near = x + x * square * polynomial(&P, square);
    let small = exp(-2.0 * x.abs());
    let far = ((1.0 - small) / (1.0 + small)).copysign(x);
    if x.abs() < 0.625 { near } else { far }
}

/// The polynomial of these coefficients, that of `x^0` first.
#[inline(always)]
pub(crate) fn polynomial<const N: usize>(coefficients: &[f32; N], x: f32) -> f32 {
    coefficients.iter().rev().fold(0.0, |sum, coefficient| sum * x + coefficient)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_right_to_the_last_two_digits() {
        for step in 0..=870_000 {
            let x = step as f32 * -1e-4;
            let (found, expected) = (f64::from(exp(x)), f64::from(x).exp());
            assert!((found - expected).abs() <= 2.4e-7 * expected, "exp({x}) = {found}, expected {expected}");
        }
    }

    #[test]
    fn the_sigmoid_and_the_hyperbolic_tangent_are_right_to_the_last_digits() {
        for step in -200_000..=200_000 {
            let x = step as f32 * 1e-4;
            let wide = f64::from(x);
            for (name, found, expected) in
                [("sigmoid", sigmoid(x), 1.0 / (1.0 + (-wide).exp())), ("tanh", tanh(x), wide.tanh())]
            {
                let error = (f64::from(found) - expected).abs();
                assert!(error <= 3e-7 * expected.abs(), "{name}({x}) = {found}, expected {expected}");
            }
        }
        assert_eq!([sigmoid(f32::NEG_INFINITY), sigmoid(0.0), sigmoid(f32::INFINITY)], [0.0, 0.5, 1.0]);
        assert_eq!([tanh(f32::NEG_INFINITY), tanh(0.0), tanh(f32::INFINITY)], [-1.0, 0.0, 1.0]);
        assert_eq!(tanh(1e-30), 1e-30);
        assert!(sigmoid(f32::NAN).is_nan() && tanh(f32::NAN).is_nan());
    }

    #[test]
    fn the_ends_are_what_they_should_be() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-88.0), 0.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert!(exp(f32::NAN).is_nan());
    }
}
