//! Decides whether the operations of two transactions on one blob commute: in either order, the
//! blob has the same content, and both transactions have the same results. The functions perform no
//! I/O and have no state.

use std::ops::Range;

use quell_wire::blob::{CellType, Operation, Overflow, Transform, TransformKind};

/// The largest number of different ranges of a blob that a transaction transforms and that are
/// compared with the ranges of other transactions.
const TRANSFORMS_MAX: usize = 64;

/// The use of a blob by the operations of a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum NameUse {
    /// The operations only transform integers, and create the blob unless it exists.
    Transforms(Vec<IntegerTransform>),
    /// There are other operations, which commute with no operation.
    Other,
}

/// A transform of integers that has the same effect before and after other transforms of the same
/// kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct IntegerTransform {
    kind: TransformKind,
    cell: CellType,
    bytes: Range<u64>,
}

impl Default for NameUse {
    /// Returns the use of a transaction without operations on the blob.
    fn default() -> NameUse {
        NameUse::Transforms(Vec::new())
    }
}

impl NameUse {
    /// Adds an operation on the blob.
    pub(crate) fn add(&mut self, operation: &Operation) {
        let NameUse::Transforms(all) = self else { return };
        match operation {
            Operation::Create { may_exist: true, .. } => {}
            Operation::Transform { offset, transform, .. } => {
                match IntegerTransform::of(*offset, transform) {
                    Some(form) if all.contains(&form) => {}
                    Some(form) if all.len() < TRANSFORMS_MAX => all.push(form),
                    _ => *self = NameUse::Other,
                }
            }
            _ => *self = NameUse::Other,
        }
    }

    /// Returns whether the operations commute with the operations of another transaction on the
    /// same blob, which exists.
    pub(crate) fn commutes(&self, other: &NameUse) -> bool {
        match (self, other) {
            (NameUse::Transforms(own), NameUse::Transforms(others)) => {
                own.iter().all(|form| others.iter().all(|other| form.commutes(other)))
            }
            _ => false,
        }
    }
}

impl IntegerTransform {
    /// Returns the form of a transform, or `None` if the transform does not commute with itself: if
    /// its result depends on the numbers before it, or its effect on the order. Sums and products
    /// of floating-point numbers are rounded, so their last bits depend on the order.
    fn of(offset: u64, transform: &Transform) -> Option<IntegerTransform> {
        let Transform { kind, cell, overflow, .. } = *transform;
        let is_integer = !matches!(cell, CellType::F32 | CellType::F64);
        let commutes = match kind {
            TransformKind::Add | TransformKind::Multiply => overflow == Overflow::Wrap,
            TransformKind::Min | TransformKind::Max => true,
            TransformKind::And | TransformKind::Or | TransformKind::Xor => true,
            TransformKind::CompareAndSet => false,
        };
        let bytes = offset..offset.checked_add(transform.length_bytes())?;
        (is_integer && commutes && !transform.reveals_numbers()).then_some(IntegerTransform {
            kind,
            cell,
            bytes,
        })
    }

    /// Returns whether the transforms change separate bytes, or are of the same kind and change the
    /// same integers.
    fn commutes(&self, other: &IntegerTransform) -> bool {
        let is_separate = self.bytes.end <= other.bytes.start || other.bytes.end <= self.bytes.start;
        let distance = self.bytes.start.abs_diff(other.bytes.start);
        let is_aligned = distance.is_multiple_of(self.cell.size_bytes() as u64);
        is_separate || (self.kind == other.kind && self.cell == other.cell && is_aligned)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transform::apply;

    const KINDS: [TransformKind; 8] = [
        TransformKind::Add,
        TransformKind::Multiply,
        TransformKind::Min,
        TransformKind::Max,
        TransformKind::And,
        TransformKind::Or,
        TransformKind::Xor,
        TransformKind::CompareAndSet,
    ];
    const CELLS: [CellType; 6] =
        [CellType::U8, CellType::I8, CellType::I16, CellType::U32, CellType::I64, CellType::F64];
    const OVERFLOWS: [Overflow; 3] = [Overflow::Wrap, Overflow::Saturate, Overflow::Check];

    fn use_of(offset: u64, transform: &Transform) -> NameUse {
        let mut of_name = NameUse::default();
        of_name.add(&Operation::Transform { name: b"n".into(), offset, transform: transform.clone() });
        of_name
    }

    /// Returns the bytes after two transforms, or `None` if one is refused.
    fn after(transforms: [(u64, &Transform); 2], mut bytes: Vec<u8>) -> Option<Vec<u8>> {
        for (offset, transform) in transforms {
            let start = offset as usize;
            apply(transform, &mut bytes[start..start + transform.length_bytes() as usize]).ok()?;
        }
        Some(bytes)
    }

    #[test]
    fn transforms_that_commute_have_the_same_effect_in_both_orders() {
        let mut random = quell_testkit::Random::new(1);
        let mut commuting = 0;
        for _ in 0..200_000 {
            let mut draw = || {
                let cell = CELLS[random.below(CELLS.len())];
                let operand: Vec<u8> = (0..cell.size_bytes()).map(|_| random.below(256) as u8).collect();
                let kind = KINDS[random.below(KINDS.len())];
                let mut transform = Transform::one(kind, cell, OVERFLOWS[random.below(3)], &operand);
                if kind == TransformKind::CompareAndSet {
                    transform.expected = operand;
                }
                (random.below(9) as u64, transform)
            };
            let (mut one, mut two) = (draw(), draw());
            if crate::transform::check(&one.1).is_err() || crate::transform::check(&two.1).is_err() {
                continue;
            }
            // Half of the pairs have the same kind.
            if random.one_in(2) {
                (two.0, two.1.kind, two.1.cell) = (one.0, one.1.kind, one.1.cell);
                two.1.operands.resize(two.1.cell.size_bytes(), 3);
                two.1.expected = one.1.expected.clone();
                two.1.overflow = one.1.overflow;
            }
            if random.one_in(2) {
                std::mem::swap(&mut one, &mut two);
            }
            if use_of(one.0, &one.1).commutes(&use_of(two.0, &two.1)) {
                commuting += 1;
                let bytes: Vec<u8> = (0..20).map(|_| random.below(256) as u8).collect();
                let first = after([(one.0, &one.1), (two.0, &two.1)], bytes.clone());
                assert!(first.is_some(), "{one:?} {two:?}");
                assert_eq!(first, after([(two.0, &two.1), (one.0, &one.1)], bytes), "{one:?} {two:?}");
            }
        }
        assert!(commuting > 10_000, "{commuting}");
    }

    #[test]
    fn additions_commute_and_operations_with_results_do_not() {
        let add = Transform::add_i64(1);
        assert!(use_of(0, &add).commutes(&use_of(0, &Transform::add_i64(7))));
        assert!(!use_of(0, &add).commutes(&use_of(8, &Transform::add_f64(1.0))));
        for other in [
            Transform { overflow: Overflow::Check, ..add.clone() },
            Transform { overflow: Overflow::Saturate, ..add.clone() },
            Transform { returns_before: true, ..add.clone() },
            Transform { kind: TransformKind::Max, ..add.clone() },
            Transform { cell: CellType::U64, ..add.clone() },
        ] {
            assert!(!use_of(0, &add).commutes(&use_of(0, &other)), "{other:?}");
        }
        assert!(!use_of(0, &add).commutes(&use_of(4, &add)), "the numbers overlap");
        let mut created = use_of(0, &add);
        created.add(&Operation::Create { name: b"n".into(), may_exist: true });
        assert!(created.commutes(&use_of(0, &add)));
        created.add(&Operation::Append { name: b"n".into(), data: b"x".into() });
        assert!(!created.commutes(&use_of(0, &add)));
    }
}
