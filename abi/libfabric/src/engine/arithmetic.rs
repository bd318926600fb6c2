//! Atomic operations: which there are, for which types, and what they do.
//!
//! They are done by the library of the process whose memory it is, one after the other, so they are atomic to each other. The
//! program's own accesses to the same memory are its own business, as libfabric has it.

mod element;

use crate::errno::Errno;
use element::{Complex, each};
use std::ffi::c_int;

/// Bytes of the operands of one operation.
pub(crate) const OPERAND_BYTES_MAX: u64 = 16 << 10;

/// Elements of one operation, whatever their type.
const ELEMENTS_BYTES_MAX: usize = 4 << 10;

/// What becomes of the value before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Nothing.
    Write,
    /// It is answered.
    Fetch,
    /// It is compared first, and answered.
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

    /// The forms in which libfabric has it.
    const fn is_of(self, form: Form) -> bool {
        match self {
            Self::Swap(_) | Self::MaskedSwap => matches!(form, Form::Compare),
            Self::Read => matches!(form, Form::Fetch),
            _ => matches!(form, Form::Write | Form::Fetch),
        }
    }
}

/// Bytes of a type, and whether it is whole numbers. Numbers as in `enum fi_datatype`; those that are not here are not supported.
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

/// An operation on some elements of a type, in some form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct What {
    operation: Operation,
    datatype: usize,
    form: Form,
    count: usize,
}

impl What {
    /// As callers number it.
    pub(crate) fn new(operation: c_int, datatype: c_int, form: Form, count: usize) -> Result<Self, Errno> {
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

    /// Elements of a type that one operation may have, and bytes of one.
    pub(crate) fn limits(operation: c_int, datatype: c_int, form: Form) -> Result<(usize, usize), Errno> {
        let what = Self::new(operation, datatype, form, 0)?;
        let (bytes, _) = TYPES[what.datatype];
        Ok((ELEMENTS_BYTES_MAX / bytes, bytes))
    }

    /// As a word of a head.
    pub(crate) fn emit(operation: c_int, datatype: c_int, form: Form, count: usize) -> u64 {
        let form = match form {
            Form::Write => 0,
            Form::Fetch => 1,
            Form::Compare => 2,
        };
        u64::from(operation as u8) | u64::from(datatype as u8) << 8 | form << 16 | (count as u64) << 32
    }

    pub(crate) fn parse(word: u64) -> Result<Self, Errno> {
        let form = match word >> 16 & 0xff {
            0 => Form::Write,
            1 => Form::Fetch,
            2 => Form::Compare,
            _ => return Err(Errno::INVAL),
        };
        Self::new(c_int::from(word as u8), c_int::from((word >> 8) as u8), form, (word >> 32) as usize)
    }

    pub(crate) const fn fetches(&self) -> bool {
        !matches!(self.form, Form::Write)
    }

    /// It needs the value before.
    pub(crate) const fn reads(&self) -> bool {
        self.fetches()
    }

    /// It leaves the value as it is.
    pub(crate) const fn only_reads(&self) -> bool {
        matches!(self.operation, Operation::Read)
    }

    pub(crate) const fn target_bytes(&self) -> usize {
        self.count * TYPES[self.datatype].0
    }

    /// Operands, and behind them what is compared with, or the mask.
    pub(crate) const fn operand_bytes(&self) -> usize {
        match (self.operation, self.form) {
            (Operation::Read, _) => 0,
            (_, Form::Compare) => 2 * self.target_bytes(),
            _ => self.target_bytes(),
        }
    }

    /// Does it. `before` is as long as the target, or empty.
    ///
    /// # Safety
    ///
    /// `place` has [`Self::target_bytes`] bytes that may be read and written, `operands` are [`Self::operand_bytes`] long.
    pub(crate) unsafe fn apply(&self, place: *mut u8, operands: &[u8], before: &mut [u8]) {
        let mut target = vec![0; self.target_bytes()];
        // SAFETY: as promised; the copy is ours.
        unsafe { std::ptr::copy_nonoverlapping(place, target.as_mut_ptr(), target.len()) };
        if !before.is_empty() {
            before.copy_from_slice(&target);
        }
        if self.only_reads() {
            return;
        }
        let (operands, compared) = operands.split_at(self.target_bytes().min(operands.len()));
        self.compute(&mut target, operands, compared);
        // SAFETY: as promised.
        unsafe { std::ptr::copy_nonoverlapping(target.as_ptr(), place, target.len()) };
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

impl Comparison {
    /// Between what was given to compare with and what is there.
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
