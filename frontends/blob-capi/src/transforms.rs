//! Transforms: arithmetic on numbers in blobs.

use std::ffi::{c_int, c_void};

use quell_blob::{CellType, Overflow, Result, Transform, TransformKind};
use quell_boundary::{handle, invalid, slice};

/// Adds the operand.
pub const QUELL_BLOB_ADD: u32 = 0;
/// Multiplies by the operand.
pub const QUELL_BLOB_MULTIPLY: u32 = 1;
/// Replaces the number by the operand if the operand is less. A NaN is replaced.
pub const QUELL_BLOB_MIN: u32 = 2;
/// Replaces the number by the operand if the operand is greater. A NaN is replaced.
pub const QUELL_BLOB_MAX: u32 = 3;
/// Bitwise and; integers only.
pub const QUELL_BLOB_AND: u32 = 4;
/// Bitwise or; integers only.
pub const QUELL_BLOB_OR: u32 = 5;
/// Bitwise exclusive or; integers only.
pub const QUELL_BLOB_XOR: u32 = 6;
/// Replaces the number by the operand if it has the same bits as the expected number. Otherwise the
/// whole transaction fails with QUELL_BLOB_DIFFERENT.
pub const QUELL_BLOB_COMPARE_AND_SET: u32 = 7;

/// The type of a number in a blob: uint8_t.
pub const QUELL_BLOB_U8: u32 = 0;
/// uint16_t.
pub const QUELL_BLOB_U16: u32 = 1;
/// uint32_t.
pub const QUELL_BLOB_U32: u32 = 2;
/// uint64_t.
pub const QUELL_BLOB_U64: u32 = 3;
/// int8_t.
pub const QUELL_BLOB_I8: u32 = 4;
/// int16_t.
pub const QUELL_BLOB_I16: u32 = 5;
/// int32_t.
pub const QUELL_BLOB_I32: u32 = 6;
/// int64_t.
pub const QUELL_BLOB_I64: u32 = 7;
/// An IEEE 754 number of 4 bytes.
pub const QUELL_BLOB_F32: u32 = 8;
/// An IEEE 754 number of 8 bytes.
pub const QUELL_BLOB_F64: u32 = 9;

/// The lower bits of an integer result outside the range of the type are stored.
pub const QUELL_BLOB_WRAP: u32 = 0;
/// The nearest number of the type is stored.
pub const QUELL_BLOB_SATURATE: u32 = 1;
/// The transaction fails with QUELL_BLOB_OVERFLOW.
pub const QUELL_BLOB_CHECK: u32 = 2;

const KINDS: [(u32, TransformKind); 8] = [
    (QUELL_BLOB_ADD, TransformKind::Add),
    (QUELL_BLOB_MULTIPLY, TransformKind::Multiply),
    (QUELL_BLOB_MIN, TransformKind::Min),
    (QUELL_BLOB_MAX, TransformKind::Max),
    (QUELL_BLOB_AND, TransformKind::And),
    (QUELL_BLOB_OR, TransformKind::Or),
    (QUELL_BLOB_XOR, TransformKind::Xor),
    (QUELL_BLOB_COMPARE_AND_SET, TransformKind::CompareAndSet),
];
const CELLS: [(u32, CellType); 10] = [
    (QUELL_BLOB_U8, CellType::U8),
    (QUELL_BLOB_U16, CellType::U16),
    (QUELL_BLOB_U32, CellType::U32),
    (QUELL_BLOB_U64, CellType::U64),
    (QUELL_BLOB_I8, CellType::I8),
    (QUELL_BLOB_I16, CellType::I16),
    (QUELL_BLOB_I32, CellType::I32),
    (QUELL_BLOB_I64, CellType::I64),
    (QUELL_BLOB_F32, CellType::F32),
    (QUELL_BLOB_F64, CellType::F64),
];
const OVERFLOWS: [(u32, Overflow); 3] = [
    (QUELL_BLOB_WRAP, Overflow::Wrap),
    (QUELL_BLOB_SATURATE, Overflow::Saturate),
    (QUELL_BLOB_CHECK, Overflow::Check),
];

/// An operation on one or more consecutive numbers of a blob. Numbers and operands are little
/// endian. Numbers after the end of the blob are zeros, and the blob is extended.
#[repr(C)]
pub struct TransformC {
    /// QUELL_BLOB_ADD, _MULTIPLY, _MIN, _MAX, _AND, _OR, _XOR or _COMPARE_AND_SET.
    pub kind: u32,
    /// The type of the numbers and operands: QUELL_BLOB_U8 to QUELL_BLOB_F64.
    pub cell: u32,
    /// The treatment of integer results of add and multiply outside the range of the type:
    /// QUELL_BLOB_WRAP, _SATURATE or _CHECK.
    pub overflow: u32,
    /// The number of consecutive numbers: at least 1, and at most 1 MiB of them.
    pub count: u32,
    /// One operand for each number, or one operand for all of them.
    pub operands: *const c_void,
    /// The length of the operands, in bytes.
    pub operands_bytes: usize,
    /// For QUELL_BLOB_COMPARE_AND_SET, the expected numbers, as many as operands; otherwise NULL.
    pub expected: *const c_void,
    /// The length of the expected numbers, in bytes; otherwise 0.
    pub expected_bytes: usize,
    /// Whether the numbers before the transform are returned.
    pub returns_before: c_int,
}

/// Returns a transform of a C program.
///
/// # Safety
///
/// `pointer` is NULL or points to an initialized value, whose pointers are NULL or point to as many
/// bytes as it states.
// SAFETY: the section above states the conditions.
pub unsafe fn transform(pointer: *const TransformC) -> Result<Transform> {
    // SAFETY: the caller guarantees the same.
    let given = unsafe { handle(pointer, "a transform")? };
    // SAFETY: the caller guarantees the lengths.
    let (operands, expected) = unsafe {
        (
            slice(given.operands.cast::<u8>(), given.operands_bytes)?,
            slice(given.expected.cast::<u8>(), given.expected_bytes)?,
        )
    };
    let unknown = |reason| invalid("transform", reason);
    Ok(Transform {
        kind: pick(&KINDS, given.kind).ok_or_else(|| unknown("the kind is not defined"))?,
        cell: pick(&CELLS, given.cell).ok_or_else(|| unknown("the type is not defined"))?,
        overflow: pick(&OVERFLOWS, given.overflow)
            .ok_or_else(|| unknown("the treatment of overflows is not defined"))?,
        count: given.count,
        operands: operands.to_vec(),
        expected: expected.to_vec(),
        returns_before: given.returns_before != 0,
    })
}

fn pick<T: Copy>(values: &[(u32, T)], number: u32) -> Option<T> {
    values.iter().find(|(each, _)| *each == number).map(|(_, value)| *value)
}
