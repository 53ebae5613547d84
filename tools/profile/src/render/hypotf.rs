//! `hypotf` of libm, which resvg uses. glibc 2.35 has a new version of this function, so a program
//! that was linked there would not start on systems with an older one, such as RHEL 9, only because
//! of it. The linker prefers this definition.

// The symbol has an unmangled name, which must have the signature of libm's function.
#![allow(unsafe_code)]

/// Returns the length of the hypotenuse of a right triangle.
// SAFETY: the signature matches hypotf(3), and the result differs from the result of hypotf(3) by
// at most the rounding of one operation.
#[unsafe(no_mangle)]
extern "C" fn hypotf(x: f32, y: f32) -> f32 {
    if x.is_infinite() || y.is_infinite() {
        return f32::INFINITY;
    }
    // Squares of finite `f32` values are finite as `f64`.
    let (x, y) = (f64::from(x), f64::from(y));
    (x * x + y * y).sqrt() as f32
}

#[cfg(test)]
mod tests {
    use super::hypotf;

    #[test]
    fn the_result_is_that_of_libm() {
        assert_eq!(hypotf(3.0, -4.0), 5.0);
        assert_eq!(hypotf(0.0, -0.0), 0.0);
        assert_eq!(hypotf(3e38, 0.0), 3e38);
        assert_eq!(hypotf(3e38, 3e38), f32::INFINITY);
        assert_eq!(hypotf(3e-45, 4e-45), 5.6e-45);
        assert_eq!(hypotf(f32::NAN, f32::NEG_INFINITY), f32::INFINITY);
        assert!(hypotf(f32::NAN, 1.0).is_nan());
    }
}
