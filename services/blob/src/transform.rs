//! The arithmetic of transforms, without I/O.

use quell_vfs::{Error, ErrorKind, Result};
use quell_wire::blob::{CellType, Overflow, Transform, TransformKind};

/// The largest length of the numbers of one transform, in bytes.
pub(crate) const TRANSFORM_BYTES_MAX: u64 = 1 << 20;

/// The reason for which a transform was not applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NotApplied {
    /// The number at this position is not the expected number.
    Different { cell: u32, found: Vec<u8> },
    /// The result for the number at this position is outside the range of its type.
    Overflow { cell: u32 },
}

/// Returns `InvalidInput` if the lengths of a transform do not agree, or its operation is not
/// defined for its type.
pub(crate) fn check(transform: &Transform) -> Result<()> {
    let refuse = |reason: String| {
        let source = Some(reason.into());
        Err(Error { source, ..Error::new(ErrorKind::InvalidInput, "transform", "") })
    };
    let length = transform.length_bytes();
    if length == 0 || length > TRANSFORM_BYTES_MAX {
        return refuse(format!("numbers of {length} bytes; the limits are 1 and {TRANSFORM_BYTES_MAX}"));
    }
    let is_length = |bytes: &[u8]| {
        bytes.len() == transform.cell.size_bytes() || bytes.len() as u64 == transform.length_bytes()
    };
    if !is_length(&transform.operands) {
        return refuse(format!("operands of {} bytes for numbers of {length}", transform.operands.len()));
    }
    let is_compare = transform.kind == TransformKind::CompareAndSet;
    if is_compare != (transform.expected.len() == transform.operands.len()) {
        return refuse(format!("expected numbers of {} bytes", transform.expected.len()));
    }
    let is_float = matches!(transform.cell, CellType::F32 | CellType::F64);
    if is_float && matches!(transform.kind, TransformKind::And | TransformKind::Or | TransformKind::Xor) {
        return refuse("a bitwise operation on floating-point numbers".into());
    }
    Ok(())
}

/// Replaces the numbers in `cells`. The transform must have been checked, and `cells` must have its
/// length.
pub(crate) fn apply(transform: &Transform, cells: &mut [u8]) -> std::result::Result<(), NotApplied> {
    if transform.kind == TransformKind::CompareAndSet {
        return compare_and_set(transform, cells);
    }
    let overflow = transform.overflow;
    macro_rules! integers {
        ($type:ty) => {
            each(transform, cells, |number, operand| {
                let (a, b) = (<$type>::from_le_bytes(number), <$type>::from_le_bytes(operand));
                let result = match (transform.kind, overflow) {
                    (TransformKind::Add, Overflow::Wrap) => a.wrapping_add(b),
                    (TransformKind::Add, Overflow::Saturate) => a.saturating_add(b),
                    (TransformKind::Add, Overflow::Check) => a.checked_add(b)?,
                    (TransformKind::Multiply, Overflow::Wrap) => a.wrapping_mul(b),
                    (TransformKind::Multiply, Overflow::Saturate) => a.saturating_mul(b),
                    (TransformKind::Multiply, Overflow::Check) => a.checked_mul(b)?,
                    (TransformKind::Min, _) => a.min(b),
                    (TransformKind::Max, _) => a.max(b),
                    (TransformKind::And, _) => a & b,
                    (TransformKind::Or, _) => a | b,
                    (TransformKind::Xor, _) => a ^ b,
                    (TransformKind::CompareAndSet, _) => unreachable!("applied above"),
                };
                Some(result.to_le_bytes())
            })
        };
    }
    macro_rules! floats {
        ($type:ty) => {
            each(transform, cells, |number, operand| {
                let (a, b) = (<$type>::from_le_bytes(number), <$type>::from_le_bytes(operand));
                let result = match transform.kind {
                    TransformKind::Add => a + b,
                    TransformKind::Multiply => a * b,
                    TransformKind::Min => a.min(b),
                    TransformKind::Max => a.max(b),
                    _ => unreachable!("refused by check"),
                };
                Some(result.to_le_bytes())
            })
        };
    }
    match transform.cell {
        CellType::U8 => integers!(u8),
        CellType::U16 => integers!(u16),
        CellType::U32 => integers!(u32),
        CellType::U64 => integers!(u64),
        CellType::I8 => integers!(i8),
        CellType::I16 => integers!(i16),
        CellType::I32 => integers!(i32),
        CellType::I64 => integers!(i64),
        CellType::F32 => floats!(f32),
        CellType::F64 => floats!(f64),
    }
}

/// Replaces each number by `result(number, operand)`. `None` is an overflow.
fn each<const N: usize>(
    transform: &Transform,
    cells: &mut [u8],
    result: impl Fn([u8; N], [u8; N]) -> Option<[u8; N]>,
) -> std::result::Result<(), NotApplied> {
    let operands = transform.operands.as_chunks::<N>().0;
    for (index, cell) in cells.as_chunks_mut::<N>().0.iter_mut().enumerate() {
        let operand = operands.get(index).unwrap_or(&operands[0]);
        *cell = result(*cell, *operand).ok_or(NotApplied::Overflow { cell: index as u32 })?;
    }
    Ok(())
}

fn compare_and_set(transform: &Transform, cells: &mut [u8]) -> std::result::Result<(), NotApplied> {
    let size = transform.cell.size_bytes();
    // A single operand is repeated for all numbers.
    let operand = |of: &[u8], index: usize| {
        let start = if of.len() == size { 0 } else { index * size };
        start..start + size
    };
    for (index, cell) in cells.chunks_exact(size).enumerate() {
        if *cell != transform.expected[operand(&transform.expected, index)] {
            return Err(NotApplied::Different { cell: index as u32, found: cell.to_vec() });
        }
    }
    for (index, cell) in cells.chunks_exact_mut(size).enumerate() {
        cell.copy_from_slice(&transform.operands[operand(&transform.operands, index)]);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transform(kind: TransformKind, cell: CellType, overflow: Overflow, operands: &[u8]) -> Transform {
        let count = (operands.len() / cell.size_bytes()) as u32;
        Transform { count, ..Transform::one(kind, cell, overflow, operands) }
    }

    #[test]
    fn integers_wrap_saturate_or_are_refused() {
        let max = i16::MAX.to_le_bytes();
        for (overflow, expected) in
            [(Overflow::Wrap, Some(i16::MIN)), (Overflow::Saturate, Some(i16::MAX)), (Overflow::Check, None)]
        {
            let add = transform(TransformKind::Add, CellType::I16, overflow, &1_i16.to_le_bytes());
            let mut cells = max;
            let applied = apply(&add, &mut cells);
            match expected {
                Some(number) => assert_eq!((applied, i16::from_le_bytes(cells)), (Ok(()), number)),
                None => assert_eq!(applied, Err(NotApplied::Overflow { cell: 0 })),
            }
        }
    }

    #[test]
    fn a_vector_has_an_operand_for_each_number_or_one_for_all() {
        let each = transform(TransformKind::Multiply, CellType::U8, Overflow::Wrap, &[2, 3, 4]);
        let mut cells = [10, 10, 10];
        apply(&each, &mut cells).expect("applied");
        assert_eq!(cells, [20, 30, 40]);
        let all =
            Transform { count: 3, ..transform(TransformKind::Max, CellType::U8, Overflow::Wrap, &[30]) };
        check(&all).expect("valid");
        apply(&all, &mut cells).expect("applied");
        assert_eq!(cells, [30, 30, 40]);
    }

    #[test]
    fn floats_follow_ieee_754_and_a_nan_is_replaced() {
        let min = transform(TransformKind::Min, CellType::F64, Overflow::Check, &1.5_f64.to_le_bytes());
        let mut cells = f64::NAN.to_le_bytes();
        apply(&min, &mut cells).expect("applied");
        assert_eq!(f64::from_le_bytes(cells), 1.5);
        let add = transform(TransformKind::Add, CellType::F32, Overflow::Check, &f32::MAX.to_le_bytes());
        let mut cells = f32::MAX.to_le_bytes();
        apply(&add, &mut cells).expect("applied");
        assert_eq!(f32::from_le_bytes(cells), f32::INFINITY);
    }

    #[test]
    fn compare_and_set_changes_all_numbers_or_none() {
        let mut set = transform(TransformKind::CompareAndSet, CellType::U16, Overflow::Wrap, &[9, 0, 8, 0]);
        set.expected = vec![1, 0, 2, 0];
        check(&set).expect("valid");
        let mut cells = [1, 0, 3, 0];
        assert_eq!(apply(&set, &mut cells), Err(NotApplied::Different { cell: 1, found: vec![3, 0] }));
        assert_eq!(cells, [1, 0, 3, 0]);
        cells = [1, 0, 2, 0];
        apply(&set, &mut cells).expect("applied");
        assert_eq!(cells, [9, 0, 8, 0]);
    }

    #[test]
    fn lengths_and_types_are_checked() {
        let valid = transform(TransformKind::Add, CellType::U32, Overflow::Wrap, &[1, 0, 0, 0]);
        check(&valid).expect("valid");
        for invalid in [
            Transform { count: 0, ..valid.clone() },
            Transform { count: u32::MAX, ..valid.clone() },
            Transform { operands: vec![1, 0, 0], ..valid.clone() },
            Transform { expected: vec![1, 0, 0, 0], ..valid.clone() },
            Transform { kind: TransformKind::CompareAndSet, ..valid.clone() },
            Transform { kind: TransformKind::Xor, cell: CellType::F32, ..valid.clone() },
        ] {
            assert_eq!(check(&invalid).expect_err("refused").kind, ErrorKind::InvalidInput, "{invalid:?}");
        }
    }
}
