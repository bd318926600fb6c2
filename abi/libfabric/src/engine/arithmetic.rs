//! Atomic operations: the supported operations and types, and their effects.
//!
//! The owner's library executes an operation, or the requester's library executes it directly in the shared memory
//! ([`direct`](crate::engine::direct)). Both use the same instructions. Aligned elements of 1, 2, 4 and 8 bytes are
//! changed by the processor's atomic instructions, one element after the other. Elements of 16 bytes and unaligned
//! elements are changed by the owner's library alone, under the lock of its domain. Operations of one type on one
//! element are therefore atomic to each other. Accesses by the program itself are not, as libfabric specifies.

mod element;

use crate::errno::Errno;
use element::{Complex, each};
use std::ffi::c_int;
use std::sync::atomic::Ordering::{AcqRel, Acquire};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64};

/// Maximum size of the operands of one operation, in bytes.
pub(crate) const OPERAND_BYTES_MAX: u64 = 16 << 10;

/// Maximum size of the elements of one operation, in bytes, for every type.
const ELEMENTS_BYTES_MAX: usize = 4 << 10;

/// The use of the value before the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AtomicForm {
    /// The value is not used.
    Write,
    /// The value is returned.
    Fetch,
    /// The value is compared first, and returned.
    Compare,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Min,
    Max,
    Sum,
    Prod,
    LogicalOr,
    LogicalAnd,
    BitOr,
    BitAnd,
    LogicalXor,
    BitXor,
    Read,
    Write,
    Swap(Comparison),
    MaskedSwap,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Comparison {
    Equal,
    NotEqual,
    LessOrEqual,
    Less,
    GreaterOrEqual,
    Greater,
}

impl Operation {
    fn of(number: c_int) -> Option<Self> {
        use Comparison::{Equal, Greater, GreaterOrEqual, Less, LessOrEqual, NotEqual};
        const ALL: [Operation; 19] = [
            Operation::Min,
            Operation::Max,
            Operation::Sum,
            Operation::Prod,
            Operation::LogicalOr,
            Operation::LogicalAnd,
            Operation::BitOr,
            Operation::BitAnd,
            Operation::LogicalXor,
            Operation::BitXor,
            Operation::Read,
            Operation::Write,
            Operation::Swap(Equal),
            Operation::Swap(NotEqual),
            Operation::Swap(LessOrEqual),
            Operation::Swap(Less),
            Operation::Swap(GreaterOrEqual),
            Operation::Swap(Greater),
            Operation::MaskedSwap,
        ];
        ALL.get(usize::try_from(number).ok()?).copied()
    }

    /// Returns true if libfabric defines the operation in this form.
    const fn is_of(self, form: AtomicForm) -> bool {
        match self {
            Self::Swap(_) | Self::MaskedSwap => matches!(form, AtomicForm::Compare),
            Self::Read => matches!(form, AtomicForm::Fetch),
            _ => matches!(form, AtomicForm::Write | AtomicForm::Fetch),
        }
    }
}

/// The size of each type in bytes, and whether it is an integer type. Indexed by `enum fi_datatype`. Other types are
/// not supported.
const TYPES: [(usize, bool); 12] = [
    (1, true),
    (1, true),
    (2, true),
    (2, true),
    (4, true),
    (4, true),
    (8, true),
    (8, true),
    (4, false),
    (8, false),
    (8, false),
    (16, false),
];

const FLOAT_COMPLEX: usize = 10;
const DOUBLE_COMPLEX: usize = 11;

/// An operation with its form, type and number of elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AtomicOp {
    operation: Operation,
    datatype: usize,
    form: AtomicForm,
    count: usize,
}

impl AtomicOp {
    /// Creates an operation from libfabric's numbers.
    pub(crate) fn new(operation: c_int, datatype: c_int, form: AtomicForm, count: usize) -> Result<Self, Errno> {
        let known = Operation::of(operation).ok_or(Errno::OPNOTSUPP)?;
        let datatype = usize::try_from(datatype).map_err(|_| Errno::OPNOTSUPP)?;
        let &(bytes, whole) = TYPES.get(datatype).ok_or(Errno::OPNOTSUPP)?;
        let complex = datatype == FLOAT_COMPLEX || datatype == DOUBLE_COMPLEX;
        let bits = matches!(known, Operation::BitOr | Operation::BitAnd | Operation::BitXor | Operation::MaskedSwap);
        let ordered = match known {
            Operation::Min | Operation::Max => true,
            Operation::Swap(comparison) => !matches!(comparison, Comparison::Equal | Comparison::NotEqual),
            _ => false,
        };
        if !known.is_of(form) || (bits && !whole) || (ordered && complex) {
            return Err(Errno::OPNOTSUPP);
        }
        if count > ELEMENTS_BYTES_MAX / bytes {
            return Err(Errno::MSGSIZE);
        }
        Ok(Self { operation: known, datatype, form, count })
    }

    /// Returns the maximum number of elements in one operation, and the size of one element in bytes.
    pub(crate) fn limits(operation: c_int, datatype: c_int, form: AtomicForm) -> Result<(usize, usize), Errno> {
        let what = Self::new(operation, datatype, form, 0)?;
        let (bytes, _) = TYPES[what.datatype];
        Ok((ELEMENTS_BYTES_MAX / bytes, bytes))
    }

    /// Encodes the operation as a word of a header.
    pub(crate) fn emit(operation: c_int, datatype: c_int, form: AtomicForm, count: usize) -> u64 {
        let form = match form {
            AtomicForm::Write => 0,
            AtomicForm::Fetch => 1,
            AtomicForm::Compare => 2,
        };
        u64::from(operation as u8) | u64::from(datatype as u8) << 8 | form << 16 | (count as u64) << 32
    }

    pub(crate) fn parse(word: u64) -> Result<Self, Errno> {
        let form = match word >> 16 & 0xff {
            0 => AtomicForm::Write,
            1 => AtomicForm::Fetch,
            2 => AtomicForm::Compare,
            _ => return Err(Errno::INVAL),
        };
        Self::new(c_int::from(word as u8), c_int::from((word >> 8) as u8), form, (word >> 32) as usize)
    }

    pub(crate) const fn fetches(&self) -> bool {
        !matches!(self.form, AtomicForm::Write)
    }

    /// Returns true if the operation needs the value before it.
    pub(crate) const fn reads(&self) -> bool {
        self.fetches()
    }

    /// Returns true if the operation leaves the value as it is.
    pub(crate) const fn only_reads(&self) -> bool {
        matches!(self.operation, Operation::Read)
    }

    pub(crate) const fn target_bytes(&self) -> usize {
        self.count * TYPES[self.datatype].0
    }

    /// Returns the size of the operands in bytes, including the compare operand or mask that follows them.
    pub(crate) const fn operand_bytes(&self) -> usize {
        match (self.operation, self.form) {
            (Operation::Read, _) => 0,
            (_, AtomicForm::Compare) => 2 * self.target_bytes(),
            _ => self.target_bytes(),
        }
    }

    /// Returns true if the processor does the operation atomically, one element at a time. Then every process that maps the memory can do
    /// it there without asking the owner.
    pub(crate) fn is_atomic_at(&self, place: *const u8) -> bool {
        let (bytes, _) = TYPES[self.datatype];
        bytes <= size_of::<u64>() && place.addr().is_multiple_of(bytes)
    }

    /// Executes the operation. `before` is as long as the target, or empty.
    ///
    /// # Safety
    ///
    /// At `place`, [`Self::target_bytes`] bytes are readable and, unless the operation only reads, writable. Other code
    /// accesses these bytes only by atomic operations, by copying, and by this function. Where the operation is not
    /// [atomic](Self::is_atomic_at), one thread at a time calls this function. `operands` has [`Self::operand_bytes`]
    /// bytes.
    pub(crate) unsafe fn apply(&self, place: *mut u8, operands: &[u8], before: &mut [u8]) {
        let (operands, compared) = operands.split_at(self.target_bytes().min(operands.len()));
        let (bytes, _) = TYPES[self.datatype];
        let mut was = vec![0; self.target_bytes()];
        if self.is_atomic_at(place) {
            for at in (0..self.target_bytes()).step_by(bytes) {
                let part = |of: &'_ [u8]| of.get(at..at + bytes).map_or([0; 8], zero_extended);
                let (operand, compared) = (part(operands), part(compared));
                let becomes = |target: &mut [u8]| self.compute(target, &operand[..bytes], &compared[..bytes]);
                // SAFETY: an element of the target, aligned as its number of bytes asks for.
                unsafe { self.change(place.add(at), &mut was[at..at + bytes], becomes) };
            }
        } else {
            // SAFETY: as promised; the copy is ours.
            unsafe { std::ptr::copy_nonoverlapping(place, was.as_mut_ptr(), was.len()) };
            if !self.only_reads() {
                let mut target = was.clone();
                self.compute(&mut target, operands, compared);
                // SAFETY: as promised.
                unsafe { std::ptr::copy_nonoverlapping(target.as_ptr(), place, target.len()) };
            }
        }
        if !before.is_empty() {
            before.copy_from_slice(&was);
        }
    }

    /// Changes one element atomically, and stores the previous value in `was`.
    ///
    /// # Safety
    ///
    /// `place` has as many bytes as `was`: 1, 2, 4 or 8, aligned accordingly. Other code accesses them as
    /// [`Self::apply`] requires.
    unsafe fn change(&self, place: *mut u8, was: &mut [u8], becomes: impl Fn(&mut [u8])) {
        macro_rules! by {
            ($atomic:ty, $number:ty) => {{
                // SAFETY: as promised. (A concurrent copy sees the element before or after, or some of both.)
                let element = unsafe { <$atomic>::from_ptr(place.cast()) };
                let mut there = element.load(Acquire);
                while !self.only_reads() {
                    let mut new = there.to_ne_bytes();
                    becomes(&mut new);
                    let new = <$number>::from_ne_bytes(new);
                    match element.compare_exchange_weak(there, new, AcqRel, Acquire) {
                        Ok(_) => break,
                        Err(other) => there = other,
                    }
                }
                was.copy_from_slice(&there.to_ne_bytes());
            }};
        }
        match was.len() {
            1 => by!(AtomicU8, u8),
            2 => by!(AtomicU16, u16),
            4 => by!(AtomicU32, u32),
            _ => by!(AtomicU64, u64),
        }
    }

    fn compute(&self, target: &mut [u8], operands: &[u8], compared: &[u8]) {
        let operation = self.operation;
        match self.datatype {
            0 => each::<i8, 1>(operation, target, operands, compared),
            1 => each::<u8, 1>(operation, target, operands, compared),
            2 => each::<i16, 2>(operation, target, operands, compared),
            3 => each::<u16, 2>(operation, target, operands, compared),
            4 => each::<i32, 4>(operation, target, operands, compared),
            5 => each::<u32, 4>(operation, target, operands, compared),
            6 => each::<i64, 8>(operation, target, operands, compared),
            7 => each::<u64, 8>(operation, target, operands, compared),
            8 => each::<f32, 4>(operation, target, operands, compared),
            9 => each::<f64, 8>(operation, target, operands, compared),
            FLOAT_COMPLEX => each::<Complex<f32>, 8>(operation, target, operands, compared),
            _ => each::<Complex<f64>, 16>(operation, target, operands, compared),
        }
    }
}

/// Extends at most eight bytes with zeroes.
fn zero_extended(bytes: &[u8]) -> [u8; 8] {
    std::array::from_fn(|at| bytes.get(at).copied().unwrap_or(0))
}

impl Comparison {
    /// Compares the given value with the value in memory.
    fn holds<T: PartialOrd>(self, given: &T, there: &T) -> bool {
        match self {
            Self::Equal => given == there,
            Self::NotEqual => given != there,
            Self::LessOrEqual => given <= there,
            Self::Less => given < there,
            Self::GreaterOrEqual => given >= there,
            Self::Greater => given > there,
        }
    }
}

#[cfg(test)]
mod tests;
