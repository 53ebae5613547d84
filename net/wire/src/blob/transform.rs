//! Arithmetic operations on numbers in blobs.

use serde::{Deserialize, Serialize};

/// The type of a number in a blob. Numbers are little endian.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum CellType {
    U8,
    U16,
    U32,
    U64,
    I8,
    I16,
    I32,
    I64,
    F32,
    F64,
}

impl CellType {
    /// Returns the size of a number, in bytes.
    pub fn size_bytes(self) -> usize {
        match self {
            CellType::U8 | CellType::I8 => 1,
            CellType::U16 | CellType::I16 => 2,
            CellType::U32 | CellType::I32 | CellType::F32 => 4,
            CellType::U64 | CellType::I64 | CellType::F64 => 8,
        }
    }
}

/// The operation of a transform on each number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum TransformKind {
    /// Adds the operand.
    Add,
    /// Multiplies by the operand.
    Multiply,
    /// Replaces the number by the operand if the operand is less. A NaN is replaced.
    Min,
    /// Replaces the number by the operand if the operand is greater. A NaN is replaced.
    Max,
    /// Bitwise and; integers only.
    And,
    /// Bitwise or; integers only.
    Or,
    /// Bitwise exclusive or; integers only.
    Xor,
    /// Replaces the number by the operand if it has the same bits as the expected number.
    /// Otherwise the whole transaction is refused.
    CompareAndSet,
}

/// The result of an integer operation that is outside the range of its type. Floating-point numbers
/// follow IEEE 754 in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Overflow {
    /// The lower bits of the result are stored.
    Wrap,
    /// The nearest number of the type is stored.
    Saturate,
    /// The transaction is refused.
    Check,
}

/// An operation on one or more consecutive numbers of a blob.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transform {
    /// The operation on each number.
    pub kind: TransformKind,
    /// The type of the numbers and operands.
    pub cell: CellType,
    /// The treatment of integer results of `Add` and `Multiply` outside the range of the type.
    pub overflow: Overflow,
    /// The number of consecutive numbers that are transformed: at least 1, and at most 1 MiB of
    /// them.
    pub count: u32,
    /// One operand for each number, or one operand for all of them, little endian.
    #[serde(with = "serde_bytes")]
    pub operands: Vec<u8>,
    /// For `CompareAndSet`, the expected numbers, as many as operands; otherwise empty.
    #[serde(with = "serde_bytes")]
    pub expected: Vec<u8>,
    /// Whether the numbers before the transform are returned.
    pub returns_before: bool,
}

impl Transform {
    /// Returns whether the result of a commit depends on the numbers before the transform.
    pub fn reveals_numbers(&self) -> bool {
        match self.kind {
            TransformKind::CompareAndSet => true,
            TransformKind::Add | TransformKind::Multiply if self.overflow == Overflow::Check => true,
            _ => self.returns_before,
        }
    }

    /// Returns a transform of one number.
    pub fn one(kind: TransformKind, cell: CellType, overflow: Overflow, operand: &[u8]) -> Transform {
        let operands = operand.to_vec();
        Transform { kind, cell, overflow, count: 1, operands, expected: Vec::new(), returns_before: false }
    }

    /// Returns the addition of a number to an `i64`, without a check of overflow.
    pub fn add_i64(operand: i64) -> Transform {
        Transform::one(TransformKind::Add, CellType::I64, Overflow::Wrap, &operand.to_le_bytes())
    }

    /// Returns the addition of a number to an `f64`.
    pub fn add_f64(operand: f64) -> Transform {
        Transform::one(TransformKind::Add, CellType::F64, Overflow::Wrap, &operand.to_le_bytes())
    }

    /// Returns the replacement of a `u64` by `new`, if it is `expected`.
    pub fn compare_and_set_u64(expected: u64, new: u64) -> Transform {
        let set =
            Transform::one(TransformKind::CompareAndSet, CellType::U64, Overflow::Wrap, &new.to_le_bytes());
        Transform { expected: expected.to_le_bytes().to_vec(), ..set }
    }

    /// Returns the length of the numbers, in bytes.
    pub fn length_bytes(&self) -> u64 {
        u64::from(self.count) * self.cell.size_bytes() as u64
    }
}
